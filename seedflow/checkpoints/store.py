"""What a checkpoint is stored in: a flat space of named files that are written once and never changed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from seedflow.errors import CheckpointError

_NAME = re.compile(r"[A-Za-z0-9%_~][A-Za-z0-9%_~.+-]*")
MAX_NAME = 255
MAX_DEPTH = 16


def checked_path(path: str) -> str:
    """Return a path inside a store if it is a harmless one.

    A path is up to 16 names joined by ``/``. A name has up to 255 letters, digits and ``%_~.+-`` and does not
    begin with a dot or a dash: nothing leads outside the store, and temporary files have no path.

    Raises
    ------
    CheckpointError
        When it is anything else.

    Examples
    --------
    >>> checked_path("manifests/00000012.json")
    'manifests/00000012.json'
    >>> checked_path("../secret")
    Traceback (most recent call last):
        ...
    seedflow.errors.CheckpointError: '../secret' is no path inside a checkpoint
    """
    names = path.split("/")
    if len(names) <= MAX_DEPTH and all(_NAME.fullmatch(name) and len(name) <= MAX_NAME for name in names):
        return path
    raise CheckpointError(f"{path[:300]!r} is no path inside a checkpoint")


class Store(ABC):
    """Files by path, written once.

    Every path goes through `checked_path`. Methods raise `CheckpointDamaged` when a file is missing or
    broken, `CheckpointConflict` when one is there already, and `CheckpointError` when the store cannot be
    reached or does not allow what is asked; the message says which file and where.
    """

    @abstractmethod
    def __str__(self) -> str:
        """Where it is, for messages."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read `size` bytes from `offset`, by default all there are; fewer are an error."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def write_new(self, path: str, blocks: Iterable[bytes]) -> None:
        """Write a file that does not exist yet, in full or not at all.

        When this returns, the file is there to stay. When it raises, whatever raised, the file is not there.
        """

    @abstractmethod
    def paths(self, directory: str = "") -> list[str]:
        """Sorted paths of all files in and below a directory; none where there is no such directory."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file if it is there."""

    @abstractmethod
    def clean(self) -> None:
        """Remove what writers that died have left behind. Only for who holds the writer's lock."""

    def open_lock(self, path: str) -> int | None:
        """Open a file for `flock`, made if need be; None where the store has no such files."""
        return None

    def is_open_at(self, fd: int, path: str) -> bool:
        """Whether a file opened by `open_lock` is still the one at that path."""
        return True

    def replace_lock(self, path: str, prepare: Callable[[int], None]) -> int:
        """Put a new file in the place of one that `open_lock` has opened; returns its descriptor.

        `prepare` is called with the descriptor before the file is at its path.

        Raises
        ------
        CheckpointError
            Where the store has no such files.
        """
        raise CheckpointError(f"{self} has no files that can be locked")

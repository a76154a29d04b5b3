"""Generations: written as drafts, committed by one file, found again after any crash."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import google_crc32c

from seedflow.checkpoints.fence import Fence
from seedflow.checkpoints.manifest import DIRECTORY, Manifest, Part, StoredFile, generation_of, manifest_path
from seedflow.checkpoints.store import Store
from seedflow.checkpoints.writer import Writer
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError, CheckpointFenced

log = logging.getLogger(__name__)

T = TypeVar("T")

MIN_KEEP = 2
"""Should the newest generation be damaged, there is one to go back to."""

BLOCK_BYTES = 2**20

# What `unique_path` makes, and all below it: files that are nobody's unless a manifest names them.
_DATA_FILE = re.compile(r"[^/]+/[^/]*-[0-9a-f]{32}(\.[^/]*)?(/.*)?")


@dataclass(frozen=True)
class Restored(Generic[T]):
    """What `Generations.restore` found.

    Attributes
    ----------
    value
        What the generation was read as.
    skipped
        Why newer generations could not be used, newest first.
    """

    value: T
    manifest: Manifest
    skipped: tuple[str, ...]


class Generations:
    """The generations in a store.

    Invariant: ``manifests/<generation>.json`` is written last, and never over another. So a generation is
    there as a whole or not at all, and no file that a kept generation names is removed.

    Readers need no lock. A writer holds the store's `WriterLock`; a second one all the same, where locks do
    not work, is found out when it commits. Methods may be called from any thread.

    Parameters
    ----------
    store
        Where.
    keep
        Whole generations kept when a new one is committed, at least 2.
    fence
        Tells a writer that was replaced; default: nobody is.
    """

    def __init__(self, store: Store, keep: int = 3, fence: Fence | None = None) -> None:
        self.store, self._keep = store, max(MIN_KEEP, keep)
        self._fence = fence or Fence(store, Writer.this())
        self.base: Manifest | None = None
        """The generation from which this writer goes on: the last that it restored or committed."""
        self._newest: int | None = None  # that this writer knows of or has tried to commit
        self._seen = 0
        self._begun = False
        self._damaged: set[int] = set()
        self._drafting = threading.Lock()

    def numbers(self) -> list[int]:
        """Committed generations, oldest first."""
        found = (generation_of(path) for path in self.store.paths(DIRECTORY))
        return sorted(number for number in found if number is not None)

    def restore(
        self, read: Callable[[Manifest], T], generation: int | None = None, fall_back: bool = True
    ) -> Restored[T]:
        """Read the newest generation that is whole.

        Parameters
        ----------
        read
            Reads what is wanted; raises `CheckpointDamaged` where that is damaged.
        generation
            Read this one and no other.
        fall_back
            Go back to older generations where the newest is damaged.

        Raises
        ------
        CheckpointDamaged
            When none is whole; says what is wrong with each.
        CheckpointError
            When there is none, or the newest whole one cannot be used for another reason, which `read` gave.
        """
        numbers = self.numbers()
        if not numbers:
            raise CheckpointError(f"{self.store} holds no checkpoint; has this run saved one yet?")
        self._seen = numbers[-1]
        if generation is not None:
            if generation not in numbers:
                raise CheckpointError(f"{self.store} has no generation {generation}; it has {numbers}")
            numbers = numbers[: numbers.index(generation) + 1]
            fall_back = False
        skipped: list[str] = []
        for number in reversed(numbers):
            try:
                manifest = Manifest.read(self.store, number)
                return Restored(read(manifest), manifest, tuple(skipped))
            except CheckpointDamaged as error:
                skipped.append(f"generation {number}: {error}")
                self._damaged.add(number)
                if not fall_back:
                    older = [n for n in numbers if n < number]
                    path = f"{self.store}/{manifest_path(number)}"
                    advice = (
                        f"go back to generation {older[-1]} by removing {path}"
                        if older
                        else "it is the only one"
                    )
                    raise CheckpointDamaged(f"{error}; {advice}") from error
        raise CheckpointDamaged(f"no generation in {self.store} is whole: " + "; ".join(skipped))

    def go_on_from(self, manifest: Manifest) -> None:
        """Take a generation that was just restored as the `base`: the next draft may use its files again."""
        self.base, self._newest = manifest, self._seen

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """Begin the next generation. Without `Draft.commit`, everything that was written is removed again.

        Raises
        ------
        CheckpointFenced
            When a later start of the same run's learner has taken over.
        CheckpointConflict
            When another process has committed a generation since this one began.
        """
        with self._drafting:
            self._fence.check()
            numbers = self.numbers()
            newest = numbers[-1] if numbers else 0
            if not self._begun:
                with self._fence.writing():
                    self._begin(numbers)
            if self._newest is None:
                self._newest = newest
            if newest > self._newest:
                raise CheckpointConflict(
                    f"another process has committed generation {newest} in {self.store}, this one knows "
                    f"{self._newest}; end one of the two runs. This one saves nothing more here"
                )
            draft = Draft(self, self._newest + 1)
            try:
                yield draft
            finally:
                if not draft.committed:
                    draft._discard()

    def _begin(self, numbers: list[int]) -> None:
        """Before this writer's first draft."""
        self.store.clean()
        for number in numbers[-self._keep :]:
            with suppress(CheckpointDamaged):
                Manifest.read(self.store, number)  # where a newer release writes, this one must not
        self._begun = True

    def _commit(self, manifest: Manifest) -> None:
        self._newest = manifest.generation  # used up, whether or not it is committed
        try:
            with self._fence.writing():
                self.store.write_new(manifest_path(manifest.generation), [manifest.encode()])
        except CheckpointFenced:
            raise
        except CheckpointConflict as error:
            raise CheckpointConflict(
                f"another process has committed generation {manifest.generation} in {self.store}; end one of "
                "the two runs. This one has saved nothing"
            ) from error
        self.base = manifest
        try:
            self._collect_garbage()
        except CheckpointFenced:
            raise
        except CheckpointError as error:
            log.warning("generation %d is saved, but old files remain: %s", manifest.generation, error)

    def _collect_garbage(self) -> None:
        """Remove what only generations older than the newest whole ones name."""
        files = self.store.paths()
        there = set(files)
        numbers = sorted(number for path in files if (number := generation_of(path)) is not None)
        kept: list[Manifest] = []
        named: set[str] = set()
        unreadable = False
        while numbers and len(kept) < self._keep:
            number = numbers.pop()
            try:
                manifest = Manifest.read(self.store, number)
            except CheckpointDamaged:
                unreadable = True  # nobody knows which files are its
                continue
            paths = {file.path for file in manifest.files}
            named |= paths
            if number not in self._damaged and paths <= there:
                kept.append(manifest)
        # What a later learner began to write is not listed above, unless it had taken over by then.
        self._fence.check()
        for number in numbers:
            self.store.delete(manifest_path(number))
        if unreadable:
            return  # until that manifest is old enough to go
        for path in files:
            if path not in named and _DATA_FILE.fullmatch(path) and not path.startswith(f"{DIRECTORY}/"):
                self.store.delete(path)


class Draft:
    """A generation that is being written. Made by `Generations.draft`.

    Attributes
    ----------
    generation
        The number that it will have.
    committed
        Whether it has become a generation.
    """

    def __init__(self, generations: Generations, generation: int) -> None:
        self.generation, self.committed = generation, False
        self.store, self.base = generations.store, generations.base
        self._generations = generations
        self._written: list[str] = []
        self._parts: dict[str, Part] = {}

    def unique_path(self, directory: str, stem: str, suffix: str) -> str:
        """A path that no other process and no other draft uses."""
        return f"{directory}/{stem}-{uuid.uuid4().hex}{suffix}"

    def write(self, path: str, pieces: Iterable[bytes]) -> StoredFile:
        """Write a file of this generation: `pieces`, however small, one after the other."""
        size = crc = 0

        def counted() -> Iterator[bytes]:
            nonlocal size, crc
            for block in blocks(pieces):
                size += len(block)
                crc = google_crc32c.extend(crc, block)
                yield block

        self.store.write_new(path, counted())
        self._written.append(path)
        return StoredFile(path, size, crc)

    def add(self, name: str, part: Part) -> None:
        """Make a part of files that were written here or belong to the `base`."""
        self._parts[name] = part

    def commit(self, state: dict[str, Any]) -> int:
        """Make this a generation; returns its number when it is there to stay.

        Raises
        ------
        CheckpointConflict
            When another process has committed a generation of this number.
        CheckpointError
            When the manifest cannot be written.
        """
        self._generations._commit(Manifest(self.generation, time.time(), self._parts, state))
        self.committed = True
        return self.generation

    def _discard(self) -> None:
        with suppress(CheckpointError):
            if manifest_path(self.generation) in self.store.paths(DIRECTORY):
                return  # a failed commit that could not be taken back, or another process's
        for path in self._written:
            with suppress(CheckpointError):
                self.store.delete(path)


def blocks(pieces: Iterable[bytes], size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Join pieces into blocks of about `size` bytes, which are written and summed without the GIL."""
    gathered: list[bytes] = []
    length = 0
    for piece in pieces:
        gathered.append(piece)
        length += len(piece)
        if length >= size:
            yield gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered, length = [], 0
    if gathered:
        yield b"".join(gathered)

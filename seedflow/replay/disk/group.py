"""One Zarr group in a checkpoint: one archive, or a directory of files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from seedflow.checkpoints import Draft, Store, StoredFile
from seedflow.errors import CheckpointDamaged
from seedflow.replay.disk.archive import Entry, Span, archive_pieces, read_directory
from seedflow.replay.disk.zarr import ZarrArray, document_paths, group_documents

Form = Literal["zip", "directory"]
SUFFIXES: dict[Form, str] = {"zip": ".zarr.zip", "directory": ".zarr"}


@dataclass(frozen=True)
class Content:
    """What an array holds: its file's size, and pieces of it, which may be asked for twice."""

    size: int
    pieces: Callable[[], Iterable[bytes]]


def write_group(
    draft: Draft,
    path: str,
    attributes: Mapping[str, Any],
    contents: Sequence[tuple[ZarrArray, Content | None]],
) -> tuple[StoredFile, ...]:
    """Write a group; its path says by the suffix in which form. An array without content is all zeros."""
    documents = group_documents([array for array, _ in contents], attributes)
    entries = [Entry(name, len(data), partial(list, [data])) for name, data in documents.items()]
    entries += [
        Entry(array.data_path, content.size, content.pieces)
        for array, content in contents
        if content is not None
    ]
    if path.endswith(SUFFIXES["zip"]):
        return (draft.write(path, archive_pieces(entries)),)
    return tuple(draft.write(f"{path}/{entry.name}", entry.pieces()) for entry in entries)


class GroupFiles:
    """The files of a stored group, whichever form it has.

    Parameters
    ----------
    path
        Of the group.
    files
        All files of the part that the group belongs to.

    Raises
    ------
    CheckpointDamaged
        When a file is missing or has another size, or the group is not made of the arrays that it should.
    """

    def __init__(
        self, store: Store, path: str, files: Mapping[str, StoredFile], arrays: Iterable[ZarrArray]
    ) -> None:
        self.path, self._store = path, store
        self._archive = files.get(path)
        if self._archive is not None:
            self._archive.check_size(store)
            self._spans = self._located(
                partial(read_directory, partial(store.read, path), self._archive.size)
            )
            self._members: dict[str, StoredFile] = {}
        else:
            start = f"{path}/"
            self._members = {
                name.removeprefix(start): file for name, file in files.items() if name.startswith(start)
            }
            for file in self._members.values():
                file.check_size(store)
            self._spans = {name: Span(0, file.size) for name, file in self._members.items()}
        arrays = list(arrays)
        expected = document_paths(arrays) | {array.data_path for array in arrays}
        found = set(self._spans)
        if found - expected:
            raise CheckpointDamaged(f"{self} holds {sorted(found - expected)[:3]}, which nobody wrote there")
        missing = expected - found - {array.data_path for array in arrays if 0 in array.shape}
        if missing:
            raise CheckpointDamaged(f"{self} lacks {sorted(missing)[:3]}")

    def __str__(self) -> str:
        return f"{self._store}/{self.path}"

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        if self._archive is not None:
            return self._archive.size
        return sum(file.size for file in self._members.values())

    def size(self, name: str) -> int:
        """Bytes of one of the group's files."""
        return self._spans[name].size

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Read a range of one of the group's files, unverified."""
        span = self._spans[name]
        if offset < 0 or offset + size > span.size:
            raise CheckpointDamaged(f"{self}: {name} ends at {span.size} bytes")
        if self._archive is not None:
            return self._store.read(self.path, span.offset + offset, size)
        return self._store.read(self._members[name].path, offset, size)

    def read_whole(self) -> tuple[dict[str, memoryview], list[str]]:
        """Read all of the group, and what is wrong with its checksums."""
        problems: list[str] = []
        if self._archive is not None:
            data = memoryview(self._read_file(self._archive, problems))
            views = {name: data[span.offset : span.offset + span.size] for name, span in self._spans.items()}
        else:
            views = {
                name: memoryview(self._read_file(file, problems)) for name, file in self._members.items()
            }
        return views, problems

    def _read_file(self, file: StoredFile, problems: list[str]) -> bytes:
        data = self._store.read(file.path, 0, file.size)
        try:
            file.check(self._store, data)
        except CheckpointDamaged as error:
            problems.append(str(error))
        return data

    def _located(self, read: Callable[[], dict[str, Span]]) -> dict[str, Span]:
        try:
            return read()
        except CheckpointDamaged as error:
            raise CheckpointDamaged(f"{self}: {error}") from error

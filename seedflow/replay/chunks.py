"""Encoded chunks in memory: what one is, and a store that counts who refers to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

CHUNK_OVERHEAD = 450
"""Bytes that a chunk takes besides its arrays: objects, its entries in store and table (measured)."""

ARRAY_OVERHEAD = 64
"""Bytes that one encoded array takes besides its content: object header, reference, rounding."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive indices of one lane, encoded.

    Attributes
    ----------
    id
        Ascending in order of arrival, never used again.
    lane
        The unbroken chain that it belongs to.
    position
        Its number within the lane, from 0.
    data
        Encoded arrays: the spec's fields, then its state. The state is absent where no sequence begins.
    """

    id: int
    lane: int
    position: int
    data: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Memory that it takes, Python's objects included."""
        return sum(map(len, self.data)) + len(self.data) * ARRAY_OVERHEAD + CHUNK_OVERHEAD


class ChunkStore:
    """Chunks by id; one lives while somebody refers to it.

    Invariant: `nbytes` is the sum over the chunks held, and each is referred to at least once.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._references: dict[int, int] = {}
        self._leaving: list[list[Chunk]] = []
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks.values())

    @property
    def nbytes(self) -> int:
        """Memory that the chunks take, Python's objects included."""
        return self._nbytes

    def references(self, chunk: Chunk) -> int:
        """How often a chunk is referred to; 0 where it is not held."""
        return self._references.get(chunk.id, 0)

    def retain(self, chunk: Chunk) -> None:
        """Refer to a chunk once more; the first time takes it in."""
        count = self._references.get(chunk.id, 0)
        self._references[chunk.id] = count + 1
        if count == 0:
            self._chunks[chunk.id] = chunk
            self._nbytes += chunk.nbytes

    def release(self, chunk: Chunk) -> None:
        """Refer to a chunk once less; the last time drops it."""
        count = self._references[chunk.id] - 1
        if count:
            self._references[chunk.id] = count
        else:
            del self._references[chunk.id]
            held = self._chunks.pop(chunk.id)
            self._nbytes -= chunk.nbytes
            for leaving in self._leaving:
                leaving.append(held)

    def some(self, ids: Iterable[int]) -> list[Chunk]:
        """The chunks of these ids that are held."""
        return [chunk for id_ in ids if (chunk := self._chunks.get(id_)) is not None]

    def watch(self) -> list[Chunk]:
        """A list that from now on gets every chunk that goes, until it is given to `unwatch`."""
        leaving: list[Chunk] = []
        self._leaving.append(leaving)
        return leaving

    def unwatch(self, leaving: list[Chunk]) -> None:
        """Let a list of `watch` be."""
        self._leaving = [other for other in self._leaving if other is not leaving]

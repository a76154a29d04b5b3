"""The table of sequences: which are held, in what order they go, how they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedflow.replay.chunks import Chunk, ChunkStore
from seedflow.replay.priorities import Priorities
from seedflow.replay.snapshot import Sequences


class SequenceTable:
    """Sequences in a ring of slots, first in, first out.

    A sequence's *generation* is its number in order of insertion; its slot is the generation modulo the
    capacity. Generations are never used again, so what is said of one that is gone touches no other.

    Invariant: the sequences held have generations from `oldest` to below `next`, at most `capacity` apart;
    each refers once to each of its chunks in the store; a slot without a sequence is never drawn.

    Parameters
    ----------
    capacity
        Sequences held at most.
    exponent
        Of the priorities.
    store
        Where the chunks are; shared with the open lanes.
    """

    def __init__(self, capacity: int, exponent: float, store: ChunkStore) -> None:
        self.capacity = capacity
        self.oldest = self.next = 0
        self.size = 0
        self.priorities = Priorities(capacity, exponent)
        self._store = store
        self._chains: list[tuple[Chunk, ...] | None] = [None] * capacity
        self._first = np.full(capacity, -1, np.int64)  # id of the first chunk; -1: no sequence

    def append(self, chain: tuple[Chunk, ...], priority: float) -> int:
        """Add a sequence; returns its generation. Of a full table the oldest goes."""
        slot = self._put(self.next, chain)
        self.priorities.set(np.array([slot]), np.array([priority]))
        return self.next - 1

    def restore(self, chains: Sequence[tuple[Chunk, ...]], sequences: Sequences, following: int) -> None:
        """Fill the empty table; of more than it holds the oldest are left out.

        Parameters
        ----------
        chains, sequences
            The sequences, oldest first; generations may be missing between them.
        following
            Generation of the next sequence.
        """
        generations = sequences.generation.tolist()
        kept = np.flatnonzero(sequences.generation >= following - self.capacity)
        if len(kept):
            self.oldest = self.next = generations[kept[0]]
        for i in kept.tolist():
            self._put(generations[i], chains[i])
        self.priorities.set(sequences.generation[kept] % self.capacity, sequences.priority[kept])
        self.next = following
        self.oldest = self.oldest if self.size else following

    def evict(self) -> None:
        """Drop the oldest sequence, of which there must be one."""
        size = self.size
        while self.size == size:
            self._drop_oldest()

    def alive(self, generations: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some generations are held."""
        inside = (generations >= self.oldest) & (generations < self.next)
        return inside & (self._first[generations % self.capacity] >= 0)

    def update(self, generations: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Give sequences new priorities; returns how many of them are gone, which are left out."""
        alive = self.alive(generations)
        self.priorities.set(generations[alive] % self.capacity, priorities[alive])
        return int(len(alive) - np.count_nonzero(alive))

    def draw(
        self, uniform: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Draw sequences by priority: their slots, generations and probabilities."""
        slots, probabilities = self.priorities.sample(uniform)
        return slots, self.oldest + (slots - self.oldest) % self.capacity, probabilities

    def chain(self, slot: int) -> tuple[Chunk, ...]:
        """The chunks of the sequence in a slot."""
        chain = self._chains[slot]
        assert chain is not None
        return chain

    def sequences(self) -> Sequences:
        """A copy of the table, oldest first."""
        begin, count = self.oldest % self.capacity, self.next - self.oldest
        end, wrapped = begin + count, max(0, begin + count - self.capacity)

        def in_order(column: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate((column[begin:end], column[:wrapped]))

        first = in_order(self._first)
        held = first >= 0
        generations = np.arange(self.oldest, self.next)
        return Sequences(generations[held], first[held], in_order(self.priorities.values)[held])

    def _put(self, generation: int, chain: tuple[Chunk, ...]) -> int:
        while self.size and generation - self.oldest >= self.capacity:
            self._drop_oldest()
        if not self.size:
            self.oldest = generation
        slot = generation % self.capacity
        for chunk in chain:
            self._store.retain(chunk)
        self._chains[slot] = chain
        self._first[slot] = chain[0].id
        self.size += 1
        self.next = generation + 1
        return slot

    def _drop_oldest(self) -> None:
        """Let the oldest generation go; where the replay was restored it may be one that was missing."""
        slot = self.oldest % self.capacity
        chain = self._chains[slot]
        self.oldest += 1
        if chain is None:
            return
        for chunk in chain:
            self._store.release(chunk)
        self._chains[slot] = None
        self._first[slot] = -1
        self.priorities.clear(slot)
        self.size -= 1

"""A replay reduced to what a checkpoint sees of it: chunks arrive, sequences form, the oldest go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from seedflow.checkpoints import Generations, LocalStore, Manifest, Store
from seedflow.replay.chunks import Chunk
from seedflow.replay.codec import encode
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.load import LoadedReplay, load_replay
from seedflow.replay.disk.part import REPLAY
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Sequences, Snapshot
from seedflow.specs import ArraySpec

FIELDS = (
    ArraySpec("observation/image", (5, 30), np.dtype("uint8")),
    ArraySpec("observation/the speed", (2,), np.dtype("float32")),
    ArraySpec("reward", (), np.dtype("float32")),
    ArraySpec("terminated", (), np.dtype("bool")),
    ArraySpec("truncated", (), np.dtype("bool")),
    ArraySpec("first", (), np.dtype("bool")),
    ArraySpec("action", (), np.dtype("int64")),
)
STATE = (ArraySpec("lstm", (4,), np.dtype("float32")), ArraySpec("stack", (3, 7), np.dtype("uint8")))
SPEC = ReplaySpec(FIELDS, STATE, chunk=2, burn_in=2, unroll=4, period=4)
"""Sequences of three chunks; one begins at every other chunk, and each chunk holds one index more."""


def values(spec: ReplaySpec, lane: int, position: int) -> list[np.ndarray]:
    """All arrays of the chunk at a place; they tell the place, and no two chunks hold the same."""
    random = np.random.default_rng([lane, position])
    found = []
    for array in spec.arrays:
        shape = spec.shape(array)
        value = random.integers(0, 2 if array.dtype == bool else 100, shape).astype(array.dtype)
        if array.dtype == np.uint8:
            value.reshape(-1)[: value.size // 2] = position % 251  # the half of it compresses
        found.append(value)
    return found


@cache
def encoded(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
    """A chunk's data as the replay holds it."""
    arrays = spec.arrays if spec.begins(position) else spec.fields
    given = values(spec, lane, position)
    return tuple(encode(v, spec.compressed(a)) for a, v in zip(arrays, given, strict=False))


@dataclass
class Ring:
    """Chunks of several lanes that arrive in turn; sequences go first in, first out."""

    capacity: int = 10
    lanes: int = 3
    spec: ReplaySpec = SPEC
    data: Callable[[ReplaySpec, int, int], tuple[bytes, ...]] = encoded
    next_id: int = 0
    next_sequence: int = 0
    next_lane: int = 0
    open: list[list[Chunk]] = field(default_factory=list)
    sequences: list[tuple[int, float, list[Chunk]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for _ in range(self.lanes):
            self.begin_lane()

    def begin_lane(self) -> None:
        self.open.append([])
        self.next_lane += 1

    def end_lane(self, number: int) -> None:
        """Another one takes its place."""
        self.open[number] = []
        self.next_lane += 1

    def arrive(self, count: int) -> Ring:
        """Let chunks arrive, one lane after the other."""
        for _ in range(count):
            chunks = self.open[self.next_id % self.lanes]
            lane = chunks[0].lane if chunks else self.next_lane - 1 + self.next_id * 1000
            position = chunks[-1].position + 1 if chunks else 0
            chunks.append(Chunk(self.next_id, lane, position, self.data(self.spec, lane, position)))
            self.next_id += 1
            length = self.spec.chunks_per_sequence
            if len(chunks) >= length and self.spec.begins(position + 1 - length):
                priority = float(self.next_sequence * 7919 % 101) / 7
                self.sequences.append((self.next_sequence, priority, chunks[-length:]))
                self.next_sequence += 1
                del self.sequences[: -self.capacity]
        return self

    def snapshot(self) -> Snapshot:
        chunks = {chunk.id: chunk for _, _, chain in self.sequences for chunk in chain}
        return Snapshot(
            self.spec,
            tuple(chunks[number] for number in sorted(chunks)),
            Sequences(
                np.array([generation for generation, _, _ in self.sequences], np.int64),
                np.array([chain[0].id for _, _, chain in self.sequences], np.int64),
                np.array([priority for _, priority, _ in self.sequences], np.float64),
            ),
            {"next_chunk": self.next_id, "counters": {"inserted": self.next_sequence}, "random": 2**100},
        )


REWARD = ArraySpec("reward", (), np.dtype("float32"))
TINY = ReplaySpec((REWARD,), (), chunk=1, burn_in=0, unroll=1, period=1)
"""One array: few files of few bytes, so that everything can be tried on each."""


def tiny_chunk(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
    return (encode(np.array([lane, position], np.float32), compress=False),)


def tiny_ring() -> Ring:
    return Ring(capacity=6, lanes=2, spec=TINY, data=tiny_chunk)


def save(generations: Generations, snapshot: Snapshot, saver: ReplaySaver | None = None) -> int:
    """Commit a generation that holds a snapshot."""
    with generations.draft() as draft:
        draft.add(REPLAY, (saver or ReplaySaver()).write(draft, snapshot))
        return draft.commit({"number": draft.generation})


def saved(root: Path, snapshot: Snapshot, form: Form = "zip") -> Store:
    """A store with one generation."""
    store = LocalStore(root)
    save(Generations(store), snapshot, ReplaySaver(form))
    return store


def load(store: Store, **settings: Any) -> LoadedReplay:
    """The newest generation that is whole."""

    def read(manifest: Manifest) -> LoadedReplay:
        return load_replay(store, manifest, **settings)

    return Generations(store).restore(read).value


def check_equal(found: Snapshot, expected: Snapshot) -> None:
    """Everything is the same, byte for byte."""
    assert found.spec == expected.spec
    assert found.chunks == expected.chunks
    for column in ("generation", "first_chunk", "priority"):
        here, there = getattr(found.sequences, column), getattr(expected.sequences, column)
        assert here.dtype == there.dtype
        assert (here == there).all()
        assert len(here) == len(there)
    assert found.state == expected.state


def check_part_of(found: Snapshot, expected: Snapshot) -> None:
    """What is there is what was saved, and belongs together."""
    known = {chunk.id: chunk for chunk in expected.chunks}
    assert all(chunk == known[chunk.id] for chunk in found.chunks)
    rows = {
        generation: (first, priority)
        for generation, first, priority in zip(
            expected.sequences.generation.tolist(),
            expected.sequences.first_chunk.tolist(),
            expected.sequences.priority.tolist(),
            strict=True,
        )
    }
    there = {(chunk.lane, chunk.position): chunk.id for chunk in found.chunks}
    used = set()
    for generation, first, priority in zip(
        found.sequences.generation.tolist(),
        found.sequences.first_chunk.tolist(),
        found.sequences.priority.tolist(),
        strict=True,
    ):
        assert rows[generation] == (first, priority)
        head = known[first]
        for step in range(found.spec.chunks_per_sequence):
            used.add(there[head.lane, head.position + step])
    assert used == {chunk.id for chunk in found.chunks}

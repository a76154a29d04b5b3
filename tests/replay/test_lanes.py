"""Which sequences a chunk completes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.replay.chunks import ARRAY_OVERHEAD, CHUNK_OVERHEAD, Chunk, ChunkStore
from seedflow.replay.lanes import Lanes
from seedflow.replay.layout import ReplaySpec

from .rig import make_spec


class Diary:
    """Appends chunks and notes positions of completed sequences and released chunks."""

    def __init__(self, spec: ReplaySpec) -> None:
        self.lanes = Lanes(spec)
        self.ids = 0

    def add(self, key: str) -> tuple[list[int] | None, list[int]]:
        expects = self.lanes.completes(key)
        number, position = self.lanes.next(key)
        done = self.lanes.append(key, Chunk(self.ids, number, position, ()))
        self.ids += 1
        assert expects == (done.sequence is not None)
        sequence = None if done.sequence is None else [c.position for c in done.sequence]
        return sequence, [c.position for c in done.released]


def test_overlapping_sequences() -> None:
    diary = Diary(make_spec(chunk=2, burn_in=2, unroll=4, period=2))
    assert [diary.add("a") for _ in range(5)] == [
        (None, []),
        (None, []),
        ([0, 1, 2], [0]),
        ([1, 2, 3], [1]),
        ([2, 3, 4], [2]),
    ]


def test_a_sequence_every_second_chunk() -> None:
    diary = Diary(make_spec(chunk=2, burn_in=2, unroll=4, period=4))
    assert [diary.add("a") for _ in range(5)] == [
        (None, []),
        (None, []),
        ([0, 1, 2], [0, 1]),
        (None, []),
        ([2, 3, 4], [2, 3]),
    ]


def test_sequences_with_gaps_between_them() -> None:
    diary = Diary(make_spec(chunk=1, burn_in=0, unroll=2, period=3))
    assert [diary.add("a") for _ in range(6)] == [
        (None, []),
        ([0, 1], [0, 1]),
        (None, [2]),
        (None, []),
        ([3, 4], [3, 4]),
        (None, [5]),
    ]


def test_lanes_interleave_and_a_lane_that_ended_begins_anew() -> None:
    diary = Diary(make_spec(chunk=2, burn_in=0, unroll=4, period=2))
    assert diary.add("a") == diary.add("b") == (None, [])
    assert diary.add("a") == ([0, 1], [0])
    assert [chunk.position for chunk in diary.lanes.end("a")] == [1]
    assert diary.lanes.end("a") == ()
    assert diary.lanes.next("a") == (2, 0)
    assert diary.add("a") == (None, [])
    assert diary.add("b") == ([0, 1], [0])
    assert sorted((chunk.lane, chunk.position) for chunk in diary.lanes.pending()) == [(1, 1), (2, 0)]
    assert not diary.lanes.continues("a", 0, 2)
    assert diary.lanes.continues("a", 2, 1)


GEOMETRIES = st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 6)).map(
    lambda n: make_spec(chunk=3, burn_in=3 * n[0], unroll=3 * n[1], period=3 * n[2])
)


@given(GEOMETRIES, st.integers(1, 30))
def test_a_chunk_is_held_as_long_as_a_later_sequence_needs_it(spec: ReplaySpec, count: int) -> None:
    diary = Diary(spec)
    held: set[int] = set()
    for position in range(count):
        sequence, released = diary.add("a")
        held.add(position)
        assert set(sequence or ()) <= held
        held -= set(released)
        begins = [first for first in range(position + 1) if spec.begins(first)]
        open_ones = [first for first in begins if first + spec.chunks_per_sequence > position + 1]
        assert held == set(range(min(open_ones, default=position + 1), position + 1))


def test_a_store_counts_references_and_bytes() -> None:
    store = ChunkStore()
    small, large = Chunk(0, 0, 0, (b"12345",)), Chunk(1, 0, 1, (bytes(100), bytes(50)))
    store.retain(small)
    store.retain(large)
    store.retain(small)
    assert small.nbytes == 5 + ARRAY_OVERHEAD + CHUNK_OVERHEAD
    assert store.nbytes == small.nbytes + 150 + 2 * ARRAY_OVERHEAD + CHUNK_OVERHEAD
    store.release(small)
    store.release(large)
    assert (list(store), store.references(small), store.references(large)) == ([small], 1, 0)
    store.release(small)
    assert (len(store), store.nbytes) == (0, 0)
    with pytest.raises(KeyError):
        store.release(small)

"""Chunks in the making, and the loop that inserts them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from seedflow.errors import ConfigError, SeedflowError
from seedflow.replay.arrival import Arrivals, InsertLoop
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch

from .rig import STRIDE, beginnings, fill, make_replay, make_spec, observation, state


class Envs:
    """Steps environments and writes each index as inference does, input half first."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self.index: dict[int, int] = {}  # of every lane's environment, the next one
        self.lives = 0

    def step(self, *lanes: int) -> list[int]:
        """One index of each lane; returns the lanes whose chunks became full."""
        for lane in lanes:
            if lane not in self.index:
                self.index[lane] = self.lives * STRIDE
                self.lives += 1
        rows, index = np.array(lanes), np.array([self.index[lane] for lane in lanes])
        placement = self.arrivals.place(rows)
        frames = np.stack([observation(int(i)) for i in index])
        self.arrivals.write(placement, {"observation": frames, "first": index % 5 == 0})
        self.arrivals.write(placement, {"index": index})
        states = [state(int(i)) for i in index]
        done = self.arrivals.advance(rows, [np.stack(part) for part in zip(*states, strict=True)])
        for lane in lanes:
            self.index[lane] += 1
        return [lanes[row] for row in done.rows]

    def steps(self, lanes: Iterable[int], count: int) -> None:
        for _ in range(count):
            self.step(*lanes)

    def drop(self, *lanes: int) -> None:
        self.arrivals.drop(np.array(lanes))
        for lane in lanes:
            self.index.pop(lane, None)


@pytest.fixture
def closing() -> Iterable[list[Arrivals | Replay]]:
    things: list[Arrivals | Replay] = []
    yield things
    for thing in things:
        thing.close()


def test_a_chunk_is_queued_when_its_last_index_is_there(closing: list[Arrivals | Replay]) -> None:
    arrivals = Arrivals(make_spec(chunk=2), lanes=3, buffers=6)
    closing.append(arrivals)
    envs = Envs(arrivals)
    assert [envs.step(0, 2), envs.step(2, 1), envs.step(0, 1)] == [[], [2], [0, 1]]
    assert [arrivals.entry(item)[0] for item in arrivals.filled.take(9)] == [2, 0, 1]
    assert arrivals.free == 3
    assert arrivals.needed(np.array([0, 1, 2])) == 3


def test_with_a_bootstrap_index_the_next_chunk_begins_with_the_last_index(
    closing: list[Arrivals | Replay],
) -> None:
    spec = make_spec(chunk=2, burn_in=0, unroll=4, period=4)
    arrivals = Arrivals(spec, lanes=1, buffers=4)
    closing.append(arrivals)
    envs = Envs(arrivals)
    assert [envs.step(0) for _ in range(5)] == [[], [], [0], [], [0]]
    chunks = [arrivals.entry(item)[1] for item in arrivals.filled.take(9)]
    assert arrivals.fields["index"][chunks].tolist() == [[0, 1, 2], [2, 3, 4]]
    assert (arrivals.fields["observation"][chunks[1], 0] == observation(2)).all()
    assert (arrivals.state[0][chunks] == [state(0)[0], state(2)[0]]).all()
    assert arrivals.free == 1
    assert arrivals.needed(np.array([0])) == 0
    envs.step(0)
    assert arrivals.needed(np.array([0])) == 1


@pytest.mark.parametrize("geometry", [(2, 2, 4, 2), (2, 0, 4, 4), (1, 0, 1, 1), (3, 3, 3, 6), (1, 1, 2, 1)])
def test_what_arrives_is_what_is_sampled(
    geometry: tuple[int, int, int, int], closing: list[Arrivals | Replay]
) -> None:
    spec = make_spec(*geometry)
    arrivals, replay = Arrivals(spec, lanes=4, buffers=8), make_replay(spec, capacity=1000)
    closing += [arrivals, replay]
    envs, loop = Envs(arrivals), InsertLoop(arrivals, replay)
    rng = np.random.default_rng(0)
    expected: set[tuple[int, int]] = set()
    for _ in range(300):
        lanes = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        if rng.random() < 0.1:
            envs.drop(*lanes)
        envs.step(*lanes)
        for lane in lanes:
            life, length = divmod(envs.index[lane], STRIDE)
            begin = length - spec.length
            if begin >= 0 and begin % spec.period == 0:
                expected.add((life, begin))
        assert loop.step(100) < 100
    assert len(expected) > 20
    assert len(replay) == len(expected)
    batch = SequenceBatch(spec, 2 * len(expected))  # two strata for each sequence: all are drawn
    assert replay.sample(batch)
    assert set(beginnings(batch)) == expected


def test_a_dropped_lane_ends_behind_its_queued_chunks(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec(chunk=2, burn_in=0, unroll=4, period=2)
    arrivals, replay = Arrivals(spec, lanes=2, buffers=9), make_replay(spec)
    closing += [arrivals, replay]
    envs = Envs(arrivals)
    envs.steps([0, 1], 5)
    envs.drop(0)
    envs.drop(0)  # there is nothing more to end
    envs.steps([0, 1], 3)
    entries = [arrivals.entry(item) for item in arrivals.filled.take(99)]
    assert [(lane, buffer is None) for lane, buffer in entries] == [
        (0, False), (1, False), (0, False), (1, False), (0, True), (1, False), (0, False), (1, False),
    ]  # fmt: skip


def test_a_lane_that_queued_nothing_has_nothing_to_end(closing: list[Arrivals | Replay]) -> None:
    arrivals = Arrivals(make_spec(chunk=4, burn_in=0, unroll=8, period=4), lanes=1, buffers=2)
    closing.append(arrivals)
    for _ in range(50):  # a lease that is lost again and again
        Envs(arrivals).step(0)
        assert arrivals.drop(np.array([0])) == 1
    assert (len(arrivals.filled), arrivals.free) == (0, 2)


def test_the_ring_holds_every_end_that_there_can_be(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec(chunk=1, burn_in=0, unroll=2, period=1)
    arrivals = Arrivals(spec, lanes=3, buffers=5)
    closing.append(arrivals)
    envs = Envs(arrivals)
    for _ in range(2):
        envs.step(0, 1)
        envs.drop(0, 1)
    envs.step(2)
    envs.drop(2)
    assert (arrivals.free, len(arrivals.filled)) == (0, 10)


def test_the_limiter_holds_chunks_back_and_buffers_run_out(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec(chunk=2, burn_in=0, unroll=4, period=2)
    arrivals = Arrivals(spec, lanes=1, buffers=3)
    replay = make_replay(spec, min_size=2, samples_per_insert=2.0, tolerance=4.0)
    closing += [arrivals, replay]
    envs, freed = Envs(arrivals), []
    loop = InsertLoop(arrivals, replay, buffers_freed=lambda: freed.append(1))
    handled = 0
    while arrivals.needed(np.array([0])) <= arrivals.free:
        envs.step(0)
        handled += loop.step()
    assert handled == len(freed) == 5  # two below the minimum, two within the band, and the first chunk
    assert (len(replay), replay.can_insert, arrivals.free) == (4, False, 0)
    with pytest.raises(SeedflowError, match="1 chunk buffers are needed and 0 are free"):
        envs.step(0)
    assert loop.step() == 0
    loop.wait(0.0)
    assert replay.sample(SequenceBatch(spec, 2))
    loop.wait(60.0)
    assert loop.step() == 1
    assert arrivals.free == 1


def test_a_chunk_that_completes_no_sequence_is_not_held_back(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec(chunk=2, burn_in=0, unroll=4, period=2)
    arrivals, replay = Arrivals(spec, lanes=1, buffers=3), make_replay(spec, tolerance=1.0)
    closing += [arrivals, replay]
    fill(replay, 7, range(3))
    assert not replay.can_insert
    envs, loop = Envs(arrivals), InsertLoop(arrivals, replay)
    envs.steps([0], 4)
    assert loop.step() == 1
    assert loop.step() == 0


class Notes:
    """An initial priority that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, list[int], bool] | int] = []

    def chunk(self, lane: int, fields: Mapping[str, np.ndarray], completes: bool) -> float | None:
        self.told.append((lane, fields["index"].tolist(), completes))
        return 0.25 if completes else None

    def end_lane(self, lane: int) -> None:
        self.told.append(lane)


def test_the_initial_priority_sees_every_chunk_and_sets_that_of_the_sequence(
    closing: list[Arrivals | Replay],
) -> None:
    spec = make_spec(chunk=2, burn_in=0, unroll=4, period=2)
    arrivals, replay, notes = Arrivals(spec, lanes=2, buffers=4), make_replay(spec), Notes()
    closing += [arrivals, replay]
    envs, loop = Envs(arrivals), InsertLoop(arrivals, replay, notes)
    envs.steps([1], 4)
    envs.drop(1)
    envs.steps([1], 2)
    assert loop.step(3) == 3
    assert loop.step(3) == 1
    begin = STRIDE
    assert notes.told == [(1, [0, 1], False), (1, [2, 3], True), 1, (1, [begin, begin + 1], False)]
    assert replay.snapshot().sequences.priority.tolist() == [0.25]


def test_a_lane_named_twice_and_too_few_buffers_are_refused(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec()
    with pytest.raises(ConfigError, match="3 chunk buffers for 3 environments: expected at least 4"):
        Arrivals(spec, lanes=3, buffers=3)
    arrivals = Arrivals(spec, lanes=3, buffers=4)
    closing.append(arrivals)
    with pytest.raises(SeedflowError, match=r"twice in one batch: \[1, 1, 2\]"):
        arrivals.place(np.array([1, 2, 1]))
    assert arrivals.free == 4
    everything = sum(a.nbytes for a in (*arrivals.fields.values(), *arrivals.state))
    assert Arrivals.nbytes(spec, 4) == everything


def test_inference_and_inserting_in_two_threads(closing: list[Arrivals | Replay]) -> None:
    spec = make_spec()
    arrivals, replay = Arrivals(spec, lanes=4, buffers=6), make_replay(spec, capacity=10_000)
    closing += [arrivals, replay]
    envs, freed, done = Envs(arrivals), threading.Event(), threading.Event()
    loop = InsertLoop(arrivals, replay, buffers_freed=freed.set)

    def insert() -> None:
        while not (loop.step() == 0 and done.is_set()):
            loop.wait(0.05)

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        for number in range(1000):
            lanes = [number % 4, (number + 1) % 4]
            while arrivals.needed(np.array(lanes)) > arrivals.free:
                freed.clear()
                if arrivals.needed(np.array(lanes)) > arrivals.free:
                    assert freed.wait(60.0)
            envs.step(*lanes)
    finally:
        done.set()
        arrivals.filled.wake()
        thread.join(60.0)
    assert len(replay) == 4 * (500 // 2 - 2)
    batch = SequenceBatch(spec, 500)
    assert replay.sample(batch)
    beginnings(batch)

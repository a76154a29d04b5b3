"""Sixteen threads on one replay; what they see must always be consistent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from seedflow.replay.codec import checked
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.replay.snapshot import chains

from .rig import beginnings, fill, make_replay, make_spec

BATCHES = 300
"""Batches that the short hammer samples."""

HAMMER_SECONDS = 600.0
"""How long the long hammer runs."""

INSERTERS, SAMPLERS, UPDATERS, SAVERS = 7, 5, 2, 2


class Hammer:
    """Threads that insert, sample, update and save until they are told to stop.

    Lane n is inserted by one thread from its first chunk on and ends at a random length, so an index that
    a sample shows must be within what its lane had.
    """

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.sampled = self.saved = self.updated = 0
        self.lengths: dict[int, int] = {}  # of every lane, the indices inserted or about to be
        self._count = threading.Lock()
        jobs = [self._insert] * INSERTERS + [self._sample] * SAMPLERS
        jobs += [self._update] * UPDATERS + [self._save] * SAVERS
        self.threads = [
            threading.Thread(target=self._run, args=(job, seed), name=f"{job.__name__}{seed}")
            for seed, job in enumerate(jobs)
        ]

    def run(self, enough: Callable[[], bool]) -> None:
        for thread in self.threads:
            thread.start()
        while not enough() and not self.stop.wait(0.02):
            pass
        self.stop.set()
        for thread in self.threads:
            thread.join(60.0)
        if self.failures:
            raise self.failures[0]
        assert not any(thread.is_alive() for thread in self.threads)

    def _run(self, job: Callable[[np.random.Generator, int], None], seed: int) -> None:
        try:
            job(np.random.default_rng(seed), seed)
        except BaseException as error:
            self.failures.append(error)
            self.stop.set()

    def _insert(self, rng: np.random.Generator, seed: int) -> None:
        lane, position = seed, 0
        while not self.stop.is_set():
            if not self.replay.wait_insert(0.05):
                continue
            self.lengths[lane] = (position + 1) * self.replay.spec.chunk
            fill(self.replay, lane, [position], float(rng.exponential()))
            position += 1
            if rng.random() < 0.05:
                self.replay.end_lane(lane)
                lane, position = lane + INSERTERS, 0

    def _sample(self, rng: np.random.Generator, seed: int) -> None:
        batch = SequenceBatch(self.replay.spec, int(rng.integers(1, 20)))
        newest = -1
        while not self.stop.is_set():
            sample = self.replay.sample(batch, timeout=0.05)
            if not sample:
                assert sample.status.size <= 64
                continue
            for lane, begin in beginnings(batch):
                assert begin % self.replay.spec.period == 0
                assert begin + batch.spec.length <= self.lengths[lane]
            assert len(np.unique(sample.generations % 64)) == len(np.unique(sample.generations))
            assert (sample.generations % 64 == sample.indices).all()
            assert 0.0 < sample.weights.min() <= sample.weights.max() == 1.0
            assert ((sample.probabilities > 0) & (sample.probabilities <= 1)).all()
            assert sample.generations.max() > newest - 64
            newest = max(newest, int(sample.generations.max()))
            stale = self.replay.update_priorities(sample.generations, rng.exponential(size=batch.size))
            assert 0 <= stale <= batch.size
            with self._count:
                self.sampled += 1

    def _update(self, rng: np.random.Generator, seed: int) -> None:
        while not self.stop.is_set():
            newest = int(self.replay.metrics()["replay/inserted"])
            generations = rng.integers(newest - 200, newest + 10, 30)
            gone = int((generations < newest - 64).sum())
            assert self.replay.update_priorities(generations, rng.exponential(size=30)) >= gone
            assert len(self.replay) <= 64
            self.updated += 1

    def _save(self, rng: np.random.Generator, seed: int) -> None:
        while not self.stop.is_set():
            snapshot = self.replay.snapshot()
            found = chains(snapshot.spec, snapshot.chunks, snapshot.sequences)
            assert None not in found
            used = {chunk.id for chain in found if chain for chunk in chain}
            assert [chunk.id for chunk in snapshot.chunks] == sorted(used)
            for chunk in snapshot.chunks[:: int(rng.integers(1, 5))]:
                for data in chunk.data:
                    checked(data)
            assert (np.diff(snapshot.sequences.generation) == 1).all()
            assert snapshot.state["next_sequence"] == snapshot.sequences.generation.max(initial=-1) + 1
            self.saved += 1


def hammer(enough: Callable[[Hammer], bool]) -> None:
    replay = make_replay(
        make_spec(), capacity=64, min_size=16, samples_per_insert=2.0, tolerance=50.0, decode_threads=2
    )
    threads = Hammer(replay)
    threads.run(lambda: enough(threads))
    metrics = replay.metrics()
    assert metrics["replay/inserted"] == metrics["replay/sequences"] + metrics["replay/evicted"]
    assert abs(metrics["replay/balance"]) <= 50.0 + 2.0 + 20
    past = metrics["replay/inserted"] - 16
    assert metrics["replay/sampled"] == past * 2.0 - metrics["replay/balance"]
    for lane in threads.lengths:
        replay.end_lane(lane)
    snapshot = replay.snapshot()
    assert metrics["replay/chunks"] >= replay.metrics()["replay/chunks"] == len(snapshot.chunks)
    assert replay.metrics()["replay/bytes"] == sum(chunk.nbytes for chunk in snapshot.chunks)
    replay.close()


def test_a_short_hammer() -> None:
    hammer(lambda threads: min(threads.sampled / BATCHES, threads.saved / 5, threads.updated / 20) >= 1)


@pytest.mark.slow
@pytest.mark.timeout(HAMMER_SECONDS + 300)
def test_a_long_hammer() -> None:
    end = time.monotonic() + HAMMER_SECONDS
    hammer(lambda threads: time.monotonic() > end)


def test_a_chunk_whose_lane_ends_while_it_is_encoded_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = make_replay(make_spec())
    fill(replay, 0, range(2))
    encode = replay._encoder.encode

    def slow_encode(*arguments: Any) -> tuple[bytes, ...]:
        replay.end_lane(0)
        return encode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replay._encoder, "encode", slow_encode)
        assert fill(replay, 0, [2]) == []
    assert replay.metrics()["replay/chunks"] == 0
    assert fill(replay, 0, range(3)) == [0]
    assert [chunk.lane for chunk in replay.snapshot().chunks] == [1, 1, 1]
    replay.close()


def test_close_wakes_whoever_waits() -> None:
    replay = make_replay(make_spec(), min_size=5, samples_per_insert=1.0, tolerance=1.0)
    answers: list[object] = []
    threads = [
        threading.Thread(
            daemon=True,
            target=lambda: answers.append(replay.sample(SequenceBatch(replay.spec, 1), timeout=None)),
        ),
        threading.Thread(
            daemon=True,
            target=lambda: answers.append(replay.sample(SequenceBatch(replay.spec, 1), timeout=60)),
        ),
    ]
    for thread in threads:
        thread.start()
    replay.close()
    for thread in threads:
        thread.join(60.0)
    assert [str(answer) for answer in answers] == ["the replay is closed"] * 2


def test_a_waiting_sampler_is_served_as_soon_as_there_is_enough() -> None:
    replay = make_replay(make_spec(), min_size=3)
    batch, answers = SequenceBatch(replay.spec, 4), []
    thread = threading.Thread(target=lambda: answers.append(replay.sample(batch, timeout=60.0)), daemon=True)
    thread.start()
    fill(replay, 0, range(5))
    thread.join(30.0)
    (answer,) = answers  # long before its timeout
    assert answer.generations.tolist() == sorted(answer.generations.tolist())
    beginnings(batch)
    replay.close()


def test_a_waiting_inserter_goes_on_as_soon_as_enough_was_sampled() -> None:
    replay = make_replay(make_spec(), min_size=1, samples_per_insert=1.0, tolerance=2.0)
    fill(replay, 0, range(5))
    assert not replay.can_insert
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(replay.wait_insert(60.0)), daemon=True)
    thread.start()
    assert replay.sample(SequenceBatch(replay.spec, 2))
    thread.join(30.0)
    assert answers == [True]  # long before its timeout
    assert not replay.can_sample(3)
    replay.close()

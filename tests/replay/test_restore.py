"""A restored replay goes on as if nothing had happened."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seedflow.errors import CheckpointError
from seedflow.replay.chunks import Chunk
from seedflow.replay.contents import Contents
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.replay.snapshot import Sequences, Snapshot

from .rig import beginnings, fill, make_config, make_replay, make_spec

BATCH = 10


def through_json(snapshot: Snapshot) -> Snapshot:
    """A snapshot as a checkpoint returns it: other objects, the state written and read."""
    chunks = tuple(replace(c, data=tuple(bytes(bytearray(d)) for d in c.data)) for c in snapshot.chunks)
    table = snapshot.sequences
    columns = (table.generation.copy(), table.first_chunk.copy(), table.priority.copy())
    return Snapshot(snapshot.spec, chunks, Sequences(*columns), json.loads(json.dumps(snapshot.state)))


class Life:
    """Experience for a replay, the same for every life of one seed; lanes end now and then."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lanes = list(range(4))
        self.positions = [0] * 4
        self.count = 4

    def insert(self, replay: Replay, chunks: int) -> None:
        for env in self.rng.integers(0, 4, chunks).tolist():
            if self.rng.random() < 0.1:
                self.end(replay, env)
            priority = float(self.rng.exponential()) if self.rng.random() < 0.7 else None
            fill(replay, self.lanes[env], [self.positions[env]], priority)
            self.positions[env] += 1

    def end(self, replay: Replay, env: int) -> None:
        replay.end_lane(self.lanes[env])
        self.lanes[env], self.positions[env] = self.count, 0
        self.count += 1

    def learn(self, replay: Replay, batches: int) -> list[bytes]:
        """Sample and update; returns what was drawn, bit for bit."""
        batch = SequenceBatch(replay.spec, BATCH)
        drawn = []
        for _ in range(batches):
            sample = replay.sample(batch)
            assert sample
            beginnings(batch)
            arrays = (sample.indices, sample.generations, sample.probabilities, sample.weights)
            drawn.append(b"".join(array.tobytes() for array in arrays))
            drawn += [array.tobytes() for array in (*batch.fields.values(), *batch.state)]
            updated = np.concatenate([sample.generations[::2], sample.generations[:1] - 40])
            replay.update_priorities(updated, self.rng.exponential(size=len(updated)))
        return drawn


@pytest.mark.parametrize("chunks", [30, 64, 500], ids=["partly full", "about full", "wrapped"])
def test_the_next_thousand_samples_are_those_of_an_uninterrupted_replay(chunks: int) -> None:
    spec, capacity = make_spec(), 32
    replay, life = make_replay(spec, seed=3, capacity=capacity), Life(chunks)
    life.insert(replay, chunks)
    life.learn(replay, 5)
    restored = make_replay(spec, seed=99, snapshot=through_json(replay.snapshot()), capacity=capacity)
    again = Life(0)
    again.rng.bit_generator.state = life.rng.bit_generator.state
    assert life.learn(replay, 1000 // BATCH) == again.learn(restored, 1000 // BATCH)
    replay.close()
    restored.close()


def test_what_goes_and_comes_while_a_snapshot_is_made_does_not_change_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunks are gathered in portions; between any two, others insert and the oldest sequences go."""
    replay, life = make_replay(make_spec(), capacity=16), Life(4)
    life.insert(replay, 100)
    whole, gather, portions = replay.snapshot(), Contents.go_on_copying, []

    def insert_and_gather(contents: Contents, copy: Any, begin: int) -> None:
        portions.append(begin)
        replay._changed.release()
        life.insert(replay, 7)
        replay._changed.acquire()
        gather(contents, copy, begin)

    monkeypatch.setattr("seedflow.replay.replay.PORTION", 3)
    monkeypatch.setattr("seedflow.replay.contents.PORTION", 3)
    monkeypatch.setattr(Contents, "go_on_copying", insert_and_gather)
    made = replay.snapshot()
    monkeypatch.undo()
    assert len(portions) > 5
    assert made.chunks == whole.chunks
    assert made.state == whole.state
    assert made.sequences.generation.tolist() == whole.sequences.generation.tolist()
    after = replay.snapshot()
    assert after.chunks[0].id > made.chunks[-1].id, "by now everything else has gone"
    replay.close()


@pytest.mark.parametrize("chunks", [14, 200], ids=["partly full", "wrapped"])
def test_saved_and_restored_over_and_over_it_stays_the_same(chunks: int) -> None:
    spec, settings = make_spec(burn_in=2, unroll=4, period=4), {"capacity": 16}
    kept, life = make_replay(spec, seed=3, **settings), Life(1)
    restored, again = make_replay(spec, seed=3, **settings), Life(1)
    for _ in range(5):
        for replay, its in ((kept, life), (restored, again)):
            its.insert(replay, chunks)
            for env in range(4):  # what a restart does to the lanes
                its.end(replay, env)
        old, restored = (
            restored,
            make_replay(spec, seed=8, snapshot=through_json(restored.snapshot()), **settings),
        )
        old.close()
        assert life.learn(kept, 20) == again.learn(restored, 20)
        drop = ("replay/snapshot_lock_ms",)
        ours, theirs = ({k: v for k, v in r.metrics().items() if k not in drop} for r in (kept, restored))
        assert ours == theirs
    ours, theirs = kept.snapshot(), restored.snapshot()
    assert ours.state == theirs.state
    assert ours.chunks == theirs.chunks
    assert ours.sequences.priority.tobytes() == theirs.sequences.priority.tobytes()
    kept.close()
    restored.close()


@pytest.mark.parametrize(("capacity", "kept"), [(16, 16), (32, 32), (64, 32)])
def test_into_another_capacity_the_newest_are_kept_with_their_priorities(capacity: int, kept: int) -> None:
    spec = make_spec()
    replay, life = make_replay(spec, capacity=32), Life(2)
    life.insert(replay, 300)
    life.learn(replay, 10)
    before = replay.snapshot()
    restored = make_replay(spec, snapshot=before, capacity=capacity)
    after = restored.snapshot()
    assert len(restored) == kept
    for name in ("generation", "first_chunk", "priority"):
        assert (getattr(after.sequences, name) == getattr(before.sequences, name)[-kept:]).all()
    held = {id(chunk) for chunk in before.chunks}
    assert {id(chunk) for chunk in after.chunks} <= held
    assert after.state["next_sequence"] == before.state["next_sequence"]
    assert after.state["counters"] == before.state["counters"]
    life.lanes, life.positions = list(range(1000, 1004)), [0] * 4
    life.insert(restored, 400)
    life.learn(restored, 10)
    assert len(restored) == capacity
    replay.close()
    restored.close()


def test_sampling_works_right_after_a_restore_and_says_not_yet_below_the_minimum() -> None:
    spec = make_spec()
    replay = make_replay(spec)
    fill(replay, 0, range(6))
    restored = make_replay(spec, snapshot=replay.snapshot())
    batch = SequenceBatch(spec, BATCH)
    assert restored.sample(batch, timeout=1.0)
    assert {begin for _, begin in beginnings(batch)} <= {0, 2, 4, 6}
    waiting = make_replay(spec, snapshot=replay.snapshot(), min_size=7)
    answer = waiting.sample(batch, timeout=0.05)
    assert not answer
    assert (answer.status.size, answer.status.min_size) == (4, 7)
    assert waiting.can_insert
    fill(waiting, 1, range(5))
    assert waiting.sample(batch)
    for each in (replay, restored, waiting):
        each.close()


def test_lanes_of_a_restored_replay_have_ended() -> None:
    spec = make_spec()
    replay = make_replay(spec)
    fill(replay, 0, range(5))
    fill(replay, 1, range(2))
    snapshot = replay.snapshot()
    assert [(c.lane, c.position) for c in snapshot.chunks] == [(0, n) for n in range(5)]
    restored = make_replay(spec, snapshot=snapshot)
    assert not restored.completes(0)
    assert fill(restored, 9, range(3)) == [3]
    assert restored.snapshot().chunks[-1].lane == 2
    replay.close()
    restored.close()


def test_samples_per_insert_go_on_without_a_burst() -> None:
    spec, settings = (
        make_spec(),
        {"capacity": 100, "min_size": 20, "samples_per_insert": 4.0, "tolerance": 40.0},
    )
    replay = make_replay(spec, **settings)
    batch = SequenceBatch(spec, BATCH)
    fill(replay, 0, range(26))
    while replay.sample(batch):
        pass
    assert replay.metrics()["replay/balance"] == -34.0
    for capacity, min_size in ((100, 20), (200, 20), (21, 20), (30, 28)):
        changed = {**settings, "capacity": capacity, "min_size": min_size}
        restored = make_replay(spec, snapshot=replay.snapshot(), **changed)
        assert restored.metrics()["replay/balance"] == -34.0
        assert not restored.sample(batch)
        assert restored.can_insert
        position = 0
        while not (drawn := restored.sample(batch)):
            fill(restored, 1, [position])
            position += 1
        assert drawn
        assert position == 3 + max(0, min_size - 24)
        assert not restored.sample(batch)
        restored.close()
    replay.close()


def test_a_lost_chunk_costs_the_sequences_that_hold_it() -> None:
    spec = make_spec()
    replay = make_replay(spec, capacity=20)
    fill(replay, 0, range(12))
    snapshot = replay.snapshot()
    damaged = replace(snapshot, chunks=tuple(c for c in snapshot.chunks if c.position != 4))
    with pytest.raises(CheckpointError, match="3 of the checkpoint's 10 sequences lack a chunk; set"):
        make_replay(spec, snapshot=damaged, capacity=20)
    said: list[str] = []
    config = make_config(spec, capacity=20, on_damage="drop")
    restored = Replay(spec, config, 0, snapshot=damaged, report=said.append)
    assert "3 of the checkpoint's 10 sequences lack a chunk, and are left out" in said[-1]
    assert restored.snapshot().sequences.generation.tolist() == [0, 1, 5, 6, 7, 8, 9]
    batch = SequenceBatch(spec, 64)
    sample = restored.sample(batch)
    assert sample
    assert set(sample.generations.tolist()) == {0, 1, 5, 6, 7, 8, 9}
    beginnings(batch)
    assert restored.update_priorities(np.array([1, 2, 3, 4, 5, -3, 20, 10**9]), np.ones(8)) == 6
    fill(restored, 5, range(30))
    assert restored.snapshot().sequences.generation.tolist() == list(range(18, 38))
    replay.close()
    restored.close()


def change_state(**changes: Any) -> Any:
    return lambda s: replace(s, state={**s.state, **changes})


def change_chunk(index: int, **changes: Any) -> Any:
    def change(s: Snapshot) -> Snapshot:
        chunks: list[Chunk] = list(s.chunks)
        chunks[index] = replace(chunks[index], **changes)
        return replace(s, chunks=tuple(chunks))

    return change


def change_table(**changes: Any) -> Any:
    return lambda s: replace(s, sequences=replace(s.sequences, **changes))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: replace(s, spec=make_spec()), "of another kind: burn_in: 4 here, 2 there"),
        (lambda s: replace(s, state={}), "no state of a replay"),
        (lambda s: replace(s, state=None), "no state of a replay"),
        (change_state(next_chunk=True), "no state of a replay"),
        (change_state(next_chunk=4), "next_chunk = 4 is in use already"),
        (change_state(next_lane=0), "next_lane = 0 is in use already"),
        (change_state(next_sequence=3), "next_sequence = 3 is in use already"),
        (change_state(next_sequence=2**70), "no state of a replay"),
        (change_state(counters={"inserted": "many"}), "no state of a replay"),
        (change_state(largest_priority=float("nan")), "largest priority is nan"),
        (change_state(limiter={"balance": 1}), "no state of a limiter"),
        (change_state(random={}), "random generator cannot go on"),
        (change_state(random={"bit_generator": "MT19937"}), "random generator cannot go on"),
        (change_state(random=[1]), "no state of a replay"),
        (change_chunk(1, id=0), "chunk 0 .* is there twice"),
        (change_chunk(1, position=0), "chunk 1 .* is there twice"),
        (change_chunk(1, data=(b"",)), "chunk 1 has 1 arrays instead of 5"),
        (change_table(generation=np.arange(3)), "different lengths"),
        (change_table(generation=np.array([0, 2, 1, 3])), "do not ascend"),
        (change_table(generation=np.array([-1, 0, 1, 2])), "do not ascend"),
        (change_table(priority=np.array([1, 1, -1, 1.0])), "priority is negative or not finite"),
        (change_table(priority=np.array([1, 1, np.inf, 1.0])), "priority is negative or not finite"),
        (change_table(first_chunk=np.array([0, 1, 2, 77])), "1 of the checkpoint's 4 sequences lack a chunk"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused_by_name(change: Any, words: str) -> None:
    replay = make_replay(make_spec(burn_in=4))
    fill(replay, 0, range(7))
    snapshot = replay.snapshot()
    assert len(snapshot.sequences) == 4
    with pytest.raises(CheckpointError, match=words):
        make_replay(make_spec(burn_in=4), snapshot=change(snapshot))
    replay.close()


def test_a_sequence_that_begins_where_none_can_is_refused() -> None:
    spec = make_spec(period=4)
    replay = make_replay(spec)
    fill(replay, 0, range(5))
    snapshot = change_table(first_chunk=np.array([0, 1]))(replay.snapshot())
    with pytest.raises(CheckpointError, match="begins at chunk 1, which is no beginning"):
        make_replay(spec, snapshot=snapshot)
    replay.close()

"""The replay against a second one that is slow and obvious."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seedflow.config import ReplayConfig
from seedflow.envs.seeding import env_seed
from seedflow.errors import ReplayFull
from seedflow.replay.chunks import ARRAY_OVERHEAD, CHUNK_OVERHEAD
from seedflow.replay.encoding import ChunkEncoder
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.replay.snapshot import Snapshot

from .rig import arrays, beginnings, make_config, make_spec

ENVS = 3
Place = tuple[int, int]  # lane, position


@dataclass
class Model:
    """Plain lists and dictionaries, looked through from end to end each time."""

    spec: ReplaySpec
    config: ReplayConfig
    limit: int
    random: np.random.Generator = field(init=False)
    sizes: dict[Place, int] = field(default_factory=dict)  # of every chunk that ever was
    open: dict[int, Place] = field(default_factory=dict)  # env: its lane, and the next position
    lanes: int = 0
    sequences: dict[int, tuple[Place, float]] = field(default_factory=dict)  # by generation, in order
    next: int = 0
    largest: float = 1.0
    inserted_past_minimum: int = 0
    sampled: int = 0
    stale: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.Generator(np.random.PCG64(env_seed(7, "replay", 0, 0)))

    def places(self, first: Place) -> set[Place]:
        return {(first[0], first[1] + k) for k in range(self.spec.chunks_per_sequence)}

    def alive(self) -> set[Place]:
        """Chunks that a sequence holds, or that a sequence to come will."""
        held = {place for first, _ in self.sequences.values() for place in self.places(first)}
        for lane, following in self.open.values():
            for begin in range(following):
                if self.spec.begins(begin) and begin + self.spec.chunks_per_sequence > following:
                    held |= {(lane, position) for position in range(begin, following)}
        return held

    def nbytes(self) -> int:
        return sum(self.sizes[place] for place in self.alive())

    def insert(self, env: int, nbytes: int, priority: float | None) -> int | None:
        lane, position = self.open.get(env, (self.lanes, 0))
        self.lanes = max(self.lanes, lane + 1)
        self.open[env] = (lane, position)
        while self.nbytes() + nbytes > self.limit:
            if len(self.sequences) <= self.config.min_size:
                raise ReplayFull("model")
            del self.sequences[min(self.sequences)]
        self.sizes[lane, position] = nbytes
        self.open[env] = (lane, position + 1)
        first = position + 1 - self.spec.chunks_per_sequence
        if first < 0 or not self.spec.begins(first):
            return None
        self.inserted_past_minimum += len(self.sequences) >= self.config.min_size
        self.sequences.pop(self.next - self.config.capacity, None)
        self.sequences[self.next] = ((lane, first), self.largest if priority is None else priority)
        self.largest = max(self.largest, priority or 0.0)
        self.next += 1
        return self.next - 1

    def draw(self, batch: int) -> tuple[list[int], np.ndarray]:
        by_slot = sorted(self.sequences, key=lambda generation: generation % self.config.capacity)
        leaves = [max(self.sequences[g][1], 1e-6) ** self.config.priority_exponent for g in by_slot]
        targets = (np.arange(batch) + self.random.random(batch)) / batch * sum(leaves)
        drawn = np.searchsorted(np.cumsum(leaves), targets, side="right")
        self.sampled += batch
        return [by_slot[i] for i in drawn], np.array(leaves)[drawn] / sum(leaves)

    def update(self, generations: list[int], priorities: list[float]) -> int:
        stale = 0
        for generation, priority in zip(generations, priorities, strict=True):
            if generation in self.sequences:
                self.sequences[generation] = (self.sequences[generation][0], priority)
                self.largest = max(self.largest, priority)
            else:
                stale += 1
        self.stale += stale
        return stale

    def restore(self, config: ReplayConfig) -> None:
        self.config = config
        self.open = {}
        self.sequences = {g: s for g, s in self.sequences.items() if g >= self.next - config.capacity}

    def drop(self, lost: set[Place]) -> None:
        """Lose chunks, as a damaged checkpoint does."""
        self.sequences = {g: s for g, s in self.sequences.items() if not self.places(s[0]) & lost}


class ReplayMachine(RuleBasedStateMachine):
    """Every call goes to both."""

    @initialize(
        geometry=st.sampled_from([(2, 2, 4, 2), (2, 2, 4, 4), (3, 0, 3, 3), (1, 0, 2, 3), (2, 4, 2, 6)]),
        capacity=st.integers(1, 9),
        min_size=st.integers(1, 4),
        allowed=st.sampled_from([26_000, 26_000, 32_000, 1 << 20]),
        alpha=st.sampled_from([0.0, 0.9, 1.0]),
    )
    def begin(
        self,
        geometry: tuple[int, int, int, int],
        capacity: int,
        min_size: int,
        allowed: int,
        alpha: float,
    ) -> None:
        spec = make_spec(*geometry)
        self.encoder = ChunkEncoder(spec)
        self.batch = SequenceBatch(spec, 5)
        config = make_config(
            spec,
            capacity=capacity,
            min_size=min(min_size, capacity),
            memory_gib=allowed / 2**30,
            priority_exponent=alpha,
            on_damage="drop",
        )
        self.replay = Replay(spec, config, 7)
        self.model = Model(spec, config, self.replay.memory.limit)
        self.known: list[int] = []  # generations that were seen

    def teardown(self) -> None:
        if hasattr(self, "replay"):
            self.replay.close()

    def size(self, spec: ReplaySpec, lane: int, position: int) -> int:
        data = self.encoder.encode(*arrays(spec, lane, position), position)
        return CHUNK_OVERHEAD + sum(len(part) + ARRAY_OVERHEAD for part in data)

    @rule(env=st.integers(0, ENVS - 1), priority=st.none() | st.floats(0, 100), count=st.integers(1, 8))
    def insert(self, env: int, priority: float | None, count: int) -> None:
        spec = self.model.spec
        for _ in range(count):
            lane, position = self.model.open.get(env, (self.model.lanes, 0))
            content = arrays(spec, lane, position)
            nbytes = self.size(spec, lane, position)
            try:
                expected = self.model.insert(env, nbytes, priority)
            except ReplayFull:
                event("full")
                with pytest.raises(ReplayFull):
                    self.replay.insert(env, *content, priority)
                return
            first = position + 1 - spec.chunks_per_sequence
            assert self.replay.completes(env) == (first >= 0 and spec.begins(first))
            assert self.replay.insert(env, *content, priority) == expected
            if expected is not None:
                self.known.append(expected)

    @rule(env=st.integers(0, ENVS - 1))
    def end_lane(self, env: int) -> None:
        self.model.open.pop(env, None)
        self.replay.end_lane(env)

    @rule()
    def sample(self) -> None:
        sample = self.replay.sample(self.batch)
        assert bool(sample) == (len(self.model.sequences) >= self.model.config.min_size)
        if not sample:
            assert (sample.status.size, sample.closed) == (len(self.model.sequences), False)
            return
        generations, probabilities = self.model.draw(self.batch.size)
        assert sample.generations.tolist() == generations
        assert sample.indices.tolist() == [g % self.model.config.capacity for g in generations]
        np.testing.assert_allclose(sample.probabilities, probabilities, rtol=1e-9)
        weights = (len(self.model.sequences) * probabilities) ** -self.model.config.importance_exponent
        np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-5)
        assert beginnings(self.batch) == [
            (lane, position * self.model.spec.chunk)
            for (lane, position), _ in (self.model.sequences[g] for g in generations)
        ]

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.known), max_size=6))
        priorities = data.draw(st.lists(st.floats(0, 100), min_size=len(chosen), max_size=len(chosen)))
        stale = self.replay.update_priorities(np.array(chosen, np.int64), np.array(priorities))
        assert stale == self.model.update(chosen, priorities)

    @rule(factor=st.sampled_from([0.5, 1.0, 1.0, 2.0]), lost=st.sampled_from([0, 0, 0, 1, 2]), data=st.data())
    def save_and_restore(self, factor: float, lost: int, data: st.DataObject) -> None:
        snapshot = self.replay.snapshot()
        assert {(c.lane, c.position) for c in snapshot.chunks} == {
            place for first, _ in self.model.sequences.values() for place in self.model.places(first)
        }
        chunks = list(snapshot.chunks)
        gone: set[Place] = set()
        for _ in range(min(lost, len(chunks))):
            chunk = chunks.pop(data.draw(st.integers(0, len(chunks) - 1)))
            gone.add((chunk.lane, chunk.position))
        state: dict[str, Any] = json.loads(json.dumps(snapshot.state))
        largest = 18 if self.model.limit >= 1 << 20 else 9  # more cannot fit, and is refused
        capacity = min(max(1, int(self.model.config.capacity * factor)), largest)
        config = self.model.config.model_copy(
            update={"capacity": capacity, "min_size": min(capacity, self.model.config.min_size)}
        )
        self.replay.close()
        restored = Snapshot(replace(snapshot.spec), tuple(chunks), snapshot.sequences, state)
        self.replay = Replay(self.model.spec, config, seed=99, snapshot=restored)
        self.model.drop(gone)
        self.model.restore(config)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "replay"):
            return
        model, metrics = self.model, self.replay.metrics()
        event(f"evicted for memory: {metrics['replay/evicted_for_memory'] > 0}")
        event(f"evicted: {metrics['replay/evicted'] > 0}")
        assert len(self.replay) == metrics["replay/sequences"] == len(model.sequences)
        assert metrics["replay/chunks"] == len(model.alive())
        assert metrics["replay/bytes"] == model.nbytes() <= model.limit
        assert (metrics["replay/sampled"], metrics["replay/stale"]) == (model.sampled, model.stale)
        expected = model.inserted_past_minimum * model.config.samples_per_insert - model.sampled
        assert metrics["replay/balance"] == expected
        sequences = self.replay.snapshot().sequences
        assert sequences.generation.tolist() == sorted(model.sequences)
        assert sequences.priority.tolist() == [model.sequences[g][1] for g in sorted(model.sequences)]


ReplayMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=40)
TestReplay = ReplayMachine.TestCase

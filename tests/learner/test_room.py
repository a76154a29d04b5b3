"""Who goes on where unroll slots are scarce, and that somebody always does."""

from collections import deque
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.config import Config, parse_config
from seedflow.learner.recording import UnrollRecorder
from seedflow.learner.room import Room
from seedflow.learner.staging import Staging
from seedflow.rollout import IndexRing, UnrollStorage


class Line:
    """A learner's bookkeeping without arrays: groups that record, and a trainer that takes whole batches."""

    def __init__(self, config: Config) -> None:
        self.config, self.envs, self.batch = config, config.actor.envs_per_group, config.train.batch
        self.unrolls, self.freed = IndexRing(config.slots), IndexRing(config.slots)
        storage = UnrollStorage((), (), config.slots, config.rollout.unroll, torch.device("cpu"))
        self.recorder = UnrollRecorder(config.max_envs, storage, self.unrolls, self.freed, config.train.batch)
        self.recorder.attach(cast(Staging, SimpleNamespace(recorded={})), {})
        self.room = Room(self.recorder)
        self.groups = config.max_envs // self.envs
        self.assembled: deque[list[int]] = deque()

    def __enter__(self) -> "Line":
        return self

    def __exit__(self, *exc: object) -> None:
        self.unrolls.close()
        self.freed.close()

    def serve(self, waiting: list[int]) -> list[int]:
        """One inference batch of the groups that wait, oldest first; returns who was served."""
        self.room.look()
        served = [group for group in waiting if self.room.take(self.rows(group))]
        if served:
            rows = np.concatenate([self.rows(group) for group in served])
            self.recorder.begin(rows, np.arange(len(rows)), ())
            self.recorder.end()
            self.recorder.hand_over()
        return served

    def rows(self, group: int) -> np.ndarray:
        return np.arange(group * self.envs, (group + 1) * self.envs)

    def fetch(self) -> bool:
        """What the prefetch loop does: a whole batch, if there is an empty buffer for it."""
        if len(self.unrolls) < self.batch or len(self.assembled) > self.config.rollout.prefetch:
            return False
        slots = self.unrolls.take(self.batch)
        self.assembled.append(slots)
        self.freed.put(slots)
        return True

    def train(self) -> bool:
        """One update."""
        if not self.assembled:
            return False
        self.assembled.popleft()
        return True


def line(envs: int, groups: int, actors: int, batch: int, unroll: int, queue: int, prefetch: int = 1) -> Line:
    return Line(
        parse_config(
            {
                "env": {"id": "CartPole-v1"},
                "actor": {"count": actors, "groups": groups, "envs_per_group": envs},
                "rollout": {"unroll": unroll, "queue": queue, "prefetch": prefetch},
                "train": {"batch": batch},
            }
        )
    )


def until_nobody_goes_on(learner: Line) -> None:
    everybody = list(range(learner.groups))
    while learner.serve(everybody):
        pass


def test_groups_that_found_no_room_go_on_together() -> None:
    """Each update frees the slots of two groups; they are kept until there are those of four."""
    with line(envs=4, groups=2, actors=8, batch=8, unroll=5, queue=16) as learner:
        until_nobody_goes_on(learner)
        everybody = list(range(learner.groups))
        assert learner.recorder.waiting > 2 * learner.batch
        assert learner.fetch()
        assert learner.recorder.take_back() >= 2 * learner.envs
        assert learner.serve(everybody) == [], "training has more than a batch to go on with"
        assert learner.fetch()
        assert learner.recorder.waiting <= learner.batch
        assert len(learner.serve(everybody)) >= 4


def test_a_group_in_the_middle_of_its_unrolls_goes_on_at_any_time() -> None:
    with line(envs=2, groups=2, actors=4, batch=2, unroll=4, queue=4) as learner:
        for _ in range(2):
            assert learner.serve([0]) == [0]
        others = list(range(1, learner.groups))
        while learner.serve(others):
            pass
        assert learner.serve([0, *others]) == [0]


def test_where_slots_are_free_nobody_waits_however_many_unrolls_do() -> None:
    with line(envs=1, groups=1, actors=1, batch=1, unroll=1, queue=8) as learner:
        for _ in range(8):
            assert learner.serve([0]) == [0]
        assert learner.recorder.crowded


@settings(max_examples=50)
@given(
    envs=st.integers(1, 5),
    groups=st.integers(1, 3),
    actors=st.integers(1, 4),
    batch=st.integers(1, 9),
    unroll=st.integers(1, 4),
    queue=st.integers(1, 20),
    prefetch=st.integers(1, 2),
    order=st.lists(st.sampled_from(("serve", "fetch", "train")), max_size=60),
    seed=st.integers(0, 1000),
)
def test_whatever_the_sizes_and_the_order_no_run_stands_still(
    envs: int,
    groups: int,
    actors: int,
    batch: int,
    unroll: int,
    queue: int,
    prefetch: int,
    order: list[str],
    seed: int,
) -> None:
    """After any beginning, training gets batch after batch, and every group goes on."""
    generator = np.random.default_rng(seed)
    with line(envs, groups, actors, batch, unroll, queue, prefetch) as learner:
        for what in order:
            if what == "serve":
                learner.serve(generator.permutation(learner.groups)[: generator.integers(1, 4)].tolist())
            else:
                learner.fetch() if what == "fetch" else learner.train()
        waiting, served, updates = list(range(learner.groups)), set[int](), 0
        for _ in range(100):
            went_on = learner.serve(waiting)
            waiting = [group for group in waiting if group not in went_on] + went_on
            served |= set(went_on)
            # Training takes a batch only where inference can do nothing: the slowest there is.
            trained = not went_on and (learner.fetch() | learner.train())
            updates += trained
            assert went_on or trained, "nobody can do anything any more"
        assert served == set(range(learner.groups))
        assert updates

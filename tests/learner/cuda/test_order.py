"""A learner on a GPU that works whenever it likes does what a learner on a CPU does, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings
from torch import Tensor

from seedflow.actor.stepping import ActorLoop
from seedflow.config import Config
from seedflow.envs import env_seed, make_group, probe_spec
from seedflow.learner.backend import Backend, CpuBackend
from seedflow.learner.cuda.backend import CudaBackend
from seedflow.learner.learner import Learner
from seedflow.learner.session import lease_table
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout, Slab
from tests.learner.cuda.fake_gpu import FakeGpu, Schedule, as_late_as_possible
from tests.learner.rig import counting_config

UPDATES = 8


class History:
    """What a learner did: every batch before it was trained on, and the weights at the end."""

    def __init__(self, batches: list[dict[str, Tensor]], weights: Tensor) -> None:
        self.batches, self.weights = batches, weights


def at_random(seed: int) -> Schedule:
    """Work between 0 and 4 steps at a time."""
    generator = random.Random(seed)
    return lambda queues: generator.randrange(5)


@contextmanager
def driven(
    config: Config, backend: Backend, report: Callable[[str], None]
) -> Iterator[tuple[Learner, list[ActorLoop]]]:
    """A learner and its actors in this thread."""
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab, TemporaryDirectory() as run_dir:
        transport = InlineTransport(layout, slab, table)
        learner = Learner(config, spec, transport, Path(run_dir), report, backend=backend)
        actors = []
        for index in range(config.actor.count):
            registration = Registration("train", index, 0, spec.fingerprint, layout.groups, layout.envs)
            connection = transport.connect(registration)
            seeds = [env_seed(config.seed, "actor", i, 0) for i in connection.env_ids]
            groups = [
                make_group(config.env, layout.envs, seeds[g * layout.envs : (g + 1) * layout.envs])
                for g in range(layout.groups)
            ]
            actors.append(ActorLoop(connection, groups))
        try:
            yield learner, actors
        finally:
            for actor in actors:
                actor.close()
            learner.close()
            transport.close()


def history(config: Config, backend: Backend, eager: bool, updates: int = UPDATES) -> History:
    """Train for some updates: eagerly, or only when slots and batches are used up."""
    batches: list[dict[str, Tensor]] = []
    with driven(config, backend, lambda text: None) as (learner, actors):
        learning, update = learner.algorithm.learning, learner.algorithm.learning.update

        def noting(batch, learning_rate):  # type: ignore[no-untyped-def]
            state = {f"state {i}": part for i, part in enumerate(batch.state)}
            batches.append({name: value.clone() for name, value in (batch.fields | state).items()})
            return update(batch, learning_rate)

        learning.update = noting  # type: ignore[method-assign]
        for _ in range(100 * updates):
            for actor in actors:
                while actor.step(0.0) is not None:
                    pass
            moved = learner.inference.step(0.0) | learner.prefetch.step()
            if eager or not moved:
                learner.training.step()
            if learner.progress.updates >= updates:
                break
        assert learner.progress.updates >= updates
        with backend.stream("training").scope():
            return History(batches, learning.parameters.parameter.detach().clone())


def differences(one: History, other: History) -> list[str]:
    """Where two histories are not the same, in order of time."""
    found = []
    for turn, (left, right) in enumerate(zip(one.batches, other.batches, strict=False)):
        found += [f"{name} of batch {turn}" for name in left if not torch.equal(left[name], right[name])]
    if not torch.equal(one.weights, other.weights):
        found.append("the weights")
    return found


# Batches of one or two groups: padded to 4 and 8 they stay as they are, and draw the same random numbers.
CONFIG = counting_config(
    actor={"count": 1, "groups": 2, "envs_per_group": 4},
    rollout={"unroll": 3, "prefetch": 2, "queue": 4},
    train={"batch": 4, "learning_rate": 0.05},
)


@pytest.fixture(scope="module")
def on_cpu() -> dict[bool, History]:
    return {eager: history(CONFIG, CpuBackend(), eager) for eager in (False, True)}


@given(eager=st.booleans(), seed=st.none() | st.integers(0, 2**32))
@example(eager=True, seed=None)
@example(eager=False, seed=None)
@settings(max_examples=6)
def test_any_order_that_the_events_allow_gives_the_same_bits(
    on_cpu: dict[bool, History], eager: bool, seed: int | None
) -> None:
    gpu = FakeGpu(as_late_as_possible if seed is None else at_random(seed))
    assert differences(on_cpu[eager], history(CONFIG, CudaBackend(gpu), eager)) == []
    happened = set(gpu.log)
    assert ("replay",) in happened
    assert {(a, "waits for", b) for a, b in WAITS} <= happened


WAITS = [
    ("host", "inference"),  # actions are read
    ("inference", "prefetch"),  # a slot is written again
    ("prefetch", "inference"),  # a slot is read
    ("training", "prefetch"),  # a batch is read
    ("prefetch", "training"),  # a batch is written again
    ("inference", "training"),  # weights are taken
    ("training", "inference"),  # weights are published again
]
"""Who waits for whom, and before what."""
SEEN = WAITS[:2] + WAITS[3:4] + WAITS[5:6]
"""Those without which this learner goes wrong. The rest are met by what the host waits for as it is."""


@pytest.mark.parametrize("waits", SEEN, ids=" for ".join)
def test_a_wait_that_is_left_out_shows(on_cpu: dict[bool, History], waits: tuple[str, str]) -> None:
    eager = waits != ("inference", "prefetch")
    gpu = FakeGpu(deaf=frozenset([waits]))
    assert differences(on_cpu[eager], history(CONFIG, CudaBackend(gpu), eager)) != []

"""A learner on a GPU that works whenever it likes does what a learner on a CPU does, to the last bit."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from seedflow.learner.backend import CpuBackend
from seedflow.learner.cuda.backend import CudaBackend
from tests.learner.cuda.driven import History, differences, history_of
from tests.learner.cuda.fake_gpu import FakeGpu, Schedule, as_late_as_possible
from tests.learner.rig import counting_config


def at_random(seed: int) -> Schedule:
    """Work between 0 and 4 steps at a time."""
    generator = random.Random(seed)
    return lambda queues: generator.randrange(5)


# Batches of one or two groups: padded to 4 and 8 they stay as they are, and draw the same random numbers.
CONFIG = counting_config(
    actor={"count": 1, "groups": 2, "envs_per_group": 4},
    rollout={"unroll": 3, "prefetch": 2, "queue": 4},
    train={"batch": 4, "learning_rate": 0.05},
)


@pytest.fixture(scope="module")
def on_cpu() -> dict[bool, History]:
    return {eager: history_of(CONFIG, CpuBackend(), eager) for eager in (False, True)}


@given(eager=st.booleans(), seed=st.none() | st.integers(0, 2**32))
@example(eager=True, seed=None)
@example(eager=False, seed=None)
@settings(max_examples=3)
def test_any_order_that_the_events_allow_gives_the_same_bits(
    on_cpu: dict[bool, History], eager: bool, seed: int | None
) -> None:
    gpu = FakeGpu(as_late_as_possible if seed is None else at_random(seed))
    assert differences(on_cpu[eager], history_of(CONFIG, CudaBackend(gpu), eager)) == []
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
    assert differences(on_cpu[eager], history_of(CONFIG, CudaBackend(gpu), eager)) != []

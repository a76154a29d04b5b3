"""R2D2 on a GPU that works late: chunks are written on the host, batches go back to the GPU."""

from __future__ import annotations

import random

import pytest
import torch

from seedflow.algos.r2d2.learning import R2D2Learning
from seedflow.learner.backend import Backend, CpuBackend
from seedflow.learner.cuda.backend import CudaBackend
from tests.learner.cuda.driven import History, driven
from tests.learner.cuda.fake_gpu import FakeGpu, as_late_as_possible
from tests.learner.rig import counting_config

CONFIG = counting_config(
    algo={"name": "r2d2"},
    actor={"count": 1, "groups": 2, "envs_per_group": 4},
    replay={"chunk": 2, "burn_in": 2, "unroll": 4, "period": 4, "capacity": 50, "min_size": 4},
    train={"batch": 2, "learning_rate": 0.01},
)


def trained(backend: Backend, updates: int = 6) -> tuple[History, torch.Tensor]:
    """Train for some updates; also returns the weights at the end."""
    history = History()
    with driven(CONFIG, backend, history) as (learner, actors, slab):
        for _ in range(400):
            for actor in actors:
                while actor.step(0.0) is not None:
                    pass
            if learner.inference.step(0.0):
                history.actions.append(slab.fields["action"].copy())
            learner.prefetch.step()
            learner.training.step()
            if learner.progress.updates >= updates:
                break
        assert learner.progress.updates >= updates
        learning = learner.algorithm.learning
        assert isinstance(learning, R2D2Learning)
        with backend.stream("training").scope():
            return history, learning.parameters.parameter.detach().clone()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_any_order_that_the_events_allow_gives_the_same_bits(seed: int | None) -> None:
    generator = random.Random(seed)
    gpu = FakeGpu(as_late_as_possible if seed is None else lambda queues: generator.randrange(4))
    (on_cpu, weights), (on_gpu, others) = trained(CpuBackend()), trained(CudaBackend(gpu))
    assert torch.equal(weights, others)
    assert len(on_cpu.actions) == len(on_gpu.actions)
    assert all((one == other).all() for one, other in zip(on_cpu.actions, on_gpu.actions, strict=True))
    (line,) = [line for line in on_gpu.reports if "CUDA graphs" in line]
    assert "algo.name = 'r2d2' keeps its experience in the host's memory" in line

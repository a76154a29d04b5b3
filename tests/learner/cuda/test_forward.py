"""Batches on a GPU: padding, evaluation, graphs and what happens without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seedflow.config import Config
from seedflow.envs import probe_spec
from seedflow.envs.synthetic import counting_observation
from seedflow.learner.backend import CpuBackend
from seedflow.learner.cuda.backend import CudaBackend
from tests.learner.cuda.driven import differences, history_of
from tests.learner.cuda.fake_gpu import FakeGpu
from tests.learner.rig import counting_config

# Groups of 3 environments in buckets of 4 and 8, of which 2 are at most in use.
PADDED = counting_config(
    actor={"count": 1, "groups": 2, "envs_per_group": 3},
    rollout={"unroll": 3, "prefetch": 1, "queue": 4},
    train={"batch": 2, "learning_rate": 0.05},
    network={"core": "none"},
)


def evaluating(**inference: object) -> Config:
    return counting_config(
        actor={"count": 1, "groups": 1, "envs_per_group": 4},
        rollout={"unroll": 3},
        train={"batch": 4, "learning_rate": 0.05},
        eval={"every": 20, "episodes": 4, "envs": 4, "deterministic": True},
        inference=inference,
    )


def test_padding_leaves_no_trace() -> None:
    """Indices are consecutive, and what acted is what is recorded."""
    gpu = FakeGpu()
    history = history_of(PADDED, CudaBackend(gpu))
    assert ("replay",) in gpu.log
    (leaf,) = probe_spec(PADDED.env).observation
    envs = set()
    for batch, log_probs in zip(history.batches, history.log_probs, strict=True):
        for b, start in enumerate(batch["observation"][0, :, 0].tolist()):
            env, count = divmod(int(start), 1000)
            envs.add(env)
            for t, observation in enumerate(batch["observation"][:, b].numpy()):
                np.testing.assert_array_equal(observation, counting_observation(env, count + t, leaf))
        torch.testing.assert_close(batch["behaviour_log_prob"][:-1], log_probs[:-1], rtol=1e-5, atol=1e-5)
    assert envs == set(range(6))
    assert max(batch["version"].max() for batch in history.batches) > 2


def test_evaluation_shares_batches_and_leaves_no_unrolls() -> None:
    on_cpu, on_gpu = (
        history_of(evaluating(), backend, updates=20) for backend in (CpuBackend(), CudaBackend(FakeGpu()))
    )
    assert differences(on_cpu, on_gpu) == []
    assert on_cpu.reports == on_gpu.reports
    assert any(line.startswith("evaluation: mean return") for line in on_gpu.reports)


def test_without_graphs_the_same_happens_operation_by_operation() -> None:
    gpu = FakeGpu()
    without = history_of(evaluating(cuda_graphs=False), CudaBackend(gpu))
    assert differences(history_of(evaluating(), CpuBackend()), without) == []
    assert ("capture", 1) not in gpu.log


def test_a_graph_that_cannot_be_captured_is_done_without_and_reported_once() -> None:
    gpu = FakeGpu(capture_fails="operation not permitted when stream is capturing")
    history = history_of(evaluating(), CudaBackend(gpu))
    assert differences(history_of(evaluating(), CpuBackend()), history) == []
    (line,) = [line for line in history.reports if "CUDA graphs" in line]
    assert "operation not permitted when stream is capturing" in line
    assert "inference.cuda_graphs=false" in line


@pytest.mark.parametrize("reason", [None, "cuMemHostRegister failed: CUDA_ERROR_NOT_SUPPORTED"])
def test_the_slab_is_pinned_or_the_reason_is_told(reason: str | None) -> None:
    gpu = FakeGpu(register_fails=reason)
    history = history_of(evaluating(), CudaBackend(gpu), updates=3)
    told = [line for line in history.reports if "cannot be pinned" in line]
    assert [reason in line for line in told if reason] == ([True] if reason else [])
    assert bool(told) == (reason is not None)
    assert differences(history_of(evaluating(), CpuBackend(), updates=3), history) == []
    assert gpu.registered == []  # let go, before the slab is unmapped
    assert ("unregister" in {entry[0] for entry in gpu.log}) == (reason is None)

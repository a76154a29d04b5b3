"""The learner on a GPU: real streams, pinned memory and graphs, which other tests have stand-ins for.

``python -m pytest tests/gpu``; needs all that seedflow needs, and numba-cuda.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seedflow.config import Config
from seedflow.envs import probe_spec
from seedflow.envs.synthetic import counting_observation
from seedflow.learner.backend import make_backend
from seedflow.learner.cuda import rows
from seedflow.learner.cuda.gpu import TorchGpu
from seedflow.learner.cuda.graphs import BucketGraphs
from tests.learner.cuda.driven import History, history_of
from tests.learner.rig import counting_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

UPDATES = 30


def config(core: str = "none", cuda_graphs: bool = True, autocast: str = "none", envs: int = 3) -> Config:
    return counting_config(
        device="cuda",
        actor={"count": 1, "groups": 2, "envs_per_group": envs},
        rollout={"unroll": 3, "prefetch": 1, "queue": 4},
        train={"batch": 2, "learning_rate": 0.01},
        network={"core": core, "core_size": 8, "inputs": ["previous_reward"], "autocast": autocast},
        inference={"cuda_graphs": cuda_graphs},
    )


def trained(settings: Config) -> History:
    return history_of(settings, make_backend(torch.device("cuda")), updates=UPDATES)


def check_indices(history: History, settings: Config, tolerance: float) -> None:
    """Unrolls hold consecutive indices, and what acted there is what is recorded."""
    (leaf,) = probe_spec(settings.env).observation
    for batch, log_probs in zip(history.batches, history.log_probs, strict=True):
        for b, start in enumerate(batch["observation"][0, :, 0].tolist()):
            env, count = divmod(int(start), 1000)
            for t, observation in enumerate(batch["observation"][:, b].cpu().numpy()):
                np.testing.assert_array_equal(observation, counting_observation(env, count + t, leaf))
        acted, found = batch["behaviour_log_prob"][:-1], log_probs[:-1]
        torch.testing.assert_close(acted, found, rtol=tolerance, atol=tolerance)
    assert max(int(batch["version"].max()) for batch in history.batches) > UPDATES // 2


@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_unrolls_hold_what_happened(cuda_graphs: bool) -> None:
    settings = config(cuda_graphs=cuda_graphs)
    history = trained(settings)
    check_indices(history, settings, 1e-4)
    assert not [line for line in history.reports if "CUDA graphs" in line or "pinned" in line]


def test_graphs_change_no_bit() -> None:
    """Groups of four fill their buckets; the same random numbers are drawn, whoever launches."""
    one, other = (trained(config(core="lstm", cuda_graphs=graphs, envs=4)) for graphs in (True, False))
    for left, right in zip(one.batches, other.batches, strict=True):
        for name in ("observation", "first", "version", "action"):
            assert torch.equal(left[name], right[name]), name
    torch.testing.assert_close(one.weights[-1], other.weights[-1], rtol=1e-4, atol=1e-5)


def test_bfloat16_acts_and_trains() -> None:
    settings = config(autocast="bfloat16")
    check_indices(trained(settings), settings, 0.05)


def test_a_slab_that_is_not_pinned_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("not allowed here")

    monkeypatch.setattr(rows, "MappedRows", refuse)
    settings = config()
    history = trained(settings)
    check_indices(history, settings, 1e-4)
    assert [line for line in history.reports if "not allowed here" in line]
    assert not [line for line in history.reports if "CUDA graphs" in line]


def test_what_cannot_be_captured_goes_on_without_a_graph() -> None:
    gpu, reports = TorchGpu(torch.device("cuda")), []
    found = torch.zeros(1, device="cuda")

    def work(bucket: int) -> None:
        found.add_(1.0)
        found.item()  # waits, which a graph cannot

    graphs = BucketGraphs(gpu, work, [], True, reports.append)
    stream = gpu.stream()
    for _ in range(6):
        stream.submit(lambda: graphs(8))
    stream.record().synchronize()
    assert found.item() == 6.0
    assert len(reports) == 1


def test_replays_draw_new_random_numbers() -> None:
    gpu = TorchGpu(torch.device("cuda"))
    generator = torch.Generator("cuda").manual_seed(1)
    numbers = torch.zeros(4, device="cuda")
    graphs = BucketGraphs(gpu, lambda bucket: numbers.uniform_(generator=generator), [generator], True, print)
    stream, seen = gpu.stream(), []
    for _ in range(6):
        with stream.scope():
            graphs(4)
            seen.append(numbers.tolist())
    generator.manual_seed(1)
    plain = [torch.zeros(4, device="cuda").uniform_(generator=generator).tolist() for _ in range(6)]
    assert seen == plain


def test_memory_of_the_host_is_pinned_and_let_go() -> None:
    gpu = TorchGpu(torch.device("cuda"))
    memory = np.zeros(1 << 16, np.uint8)
    tensor = torch.from_numpy(memory)
    assert not tensor.is_pinned()
    gpu.register(memory)
    assert tensor.is_pinned()
    with pytest.raises(RuntimeError, match="cuMemHostRegister failed: CUDA_ERROR_"):
        gpu.register(memory)
    assert torch.ones(3, device="cuda").sum().item() == 3.0  # a refusal leaves no error behind
    gpu.unregister(memory)
    assert not tensor.is_pinned()
    assert gpu.host((3,), torch.int64).is_pinned()

"""The flat optimizer steps as torch's do, and keeps its state in a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from seedflow.algos.optimizer import FlatOptimizer
from seedflow.config import TrainConfig
from seedflow.errors import CheckpointError
from seedflow.networks.flat import FlatParameters


def torchs_own(config: TrainConfig, module: nn.Module) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"lr": config.learning_rate, "eps": config.optimizer_epsilon}
    if config.optimizer == "adam":
        return torch.optim.Adam(module.parameters(), betas=config.adam_betas, **settings)
    return torch.optim.RMSprop(module.parameters(), alpha=config.rmsprop_decay, **settings)


def modules() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    one, two = nn.Linear(7, 5), nn.Linear(7, 5)
    two.load_state_dict(one.state_dict())
    return one, two


def backward(module: nn.Module, seed: int) -> None:
    x = torch.randn(11, 7, generator=torch.Generator().manual_seed(seed))
    module(x).square().sum().backward()


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("clip_norm", [None, 1.0, 1e6])
def test_ten_steps_are_torchs(optimizer: str, clip_norm: float | None) -> None:
    config = TrainConfig(optimizer=optimizer, clip_norm=clip_norm, learning_rate=0.01)
    ours, theirs = modules()
    parameters = FlatParameters(ours)
    flat, reference = FlatOptimizer(parameters, config), torchs_own(config, theirs)
    for step in range(10):
        parameters.zero_grad()
        reference.zero_grad()
        backward(ours, step)
        backward(theirs, step)
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm or float("inf"))
        reference.step()
        torch.testing.assert_close(flat.step(0.01), norm)
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_state_is_that_of_torch_by_name_and_goes_on_to_the_bit(optimizer: str) -> None:
    config = TrainConfig(optimizer=optimizer)
    first, second = (FlatParameters(module) for module in modules())
    one, two = FlatOptimizer(first, config), FlatOptimizer(second, config)
    assert one.tensors() == {}
    two.restore({})
    assert first.parameter.grad is not None
    assert second.parameter.grad is not None
    for _ in range(3):
        first.parameter.grad.normal_()
        one.step(0.1)
    saved = {name: tensor.clone() for name, tensor in one.tensors().items()}
    names = {"adam": {"exp_avg", "exp_avg_sq"}, "rmsprop": {"square_avg"}}[optimizer]
    assert saved.keys() == {f"optimizer/{name}" for name in {"step", *names}}
    assert saved["optimizer/step"].item() == 3.0
    two.restore(saved)
    second.parameter.data.copy_(first.parameter.data)
    second.parameter.grad.copy_(first.parameter.grad.normal_())
    one.step(0.1)
    two.step(0.1)
    assert torch.equal(first.parameter, second.parameter)
    assert two.tensors()["optimizer/step"].item() == 4.0


def test_the_state_of_another_optimizer_is_refused_by_name() -> None:
    one, two = (FlatParameters(module) for module in modules())
    adam, rmsprop = (
        FlatOptimizer(parameters, TrainConfig(optimizer=name))
        for parameters, name in ((one, "adam"), (two, "rmsprop"))
    )
    adam.step(0.1)
    with pytest.raises(CheckpointError, match=r"train\.optimizer = 'rmsprop' needs \['square_avg', 'step'\]"):
        rmsprop.restore(adam.tensors())

"""Optimizer steps: numbers worked out by hand, clipping, and what the arguments may be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import adam_step, rmsprop_step

RMSPROP = {"learning_rate": 0.1, "decay": 0.9, "epsilon": 0.0}
ADAM: dict[str, Any] = {"step": 1, "learning_rate": 0.1, "betas": (0.9, 0.999), "epsilon": 0.0}


def vectors(device: str, count: int) -> list[Tensor]:
    parameter = torch.tensor([1.0, 2.0], device=device)
    gradient = torch.tensor([3.0, -4.0], device=device)
    return [parameter, gradient, *(torch.zeros(2, device=device) for _ in range(count))]


def test_the_first_step_of_rmsprop_is_the_gradients_sign(device: str) -> None:
    parameter, gradient, square = vectors(device, 1)
    norm = rmsprop_step(parameter, gradient, square, **RMSPROP)
    assert norm.item() == pytest.approx(5.0)
    assert square.tolist() == pytest.approx([0.9, 1.6])
    assert parameter.tolist() == pytest.approx([1.0 - 0.1 / 0.1**0.5, 2.0 + 0.1 / 0.1**0.5])


def test_the_first_step_of_adam_is_the_learning_rate(device: str) -> None:
    parameter, gradient, mean, square = vectors(device, 2)
    norm = adam_step(parameter, gradient, mean, square, **ADAM)
    assert norm.item() == pytest.approx(5.0)
    assert mean.tolist() == pytest.approx([0.3, -0.4])
    assert square.tolist() == pytest.approx([0.009, 0.016])
    assert parameter.tolist() == pytest.approx([0.9, 2.1])


def test_epsilon_is_added_to_the_root(device: str) -> None:
    parameter, gradient, square = vectors(device, 1)
    rmsprop_step(parameter, gradient, square, **{**RMSPROP, "epsilon": 0.5})
    assert parameter[0].item() == pytest.approx(1.0 - 0.3 / (0.9**0.5 + 0.5))


@pytest.mark.parametrize("step", [rmsprop_step, adam_step])
def test_a_gradient_above_the_norm_is_scaled_down_but_reported_and_left_as_it_is(
    step: Any, device: str
) -> None:
    settings, count = (RMSPROP, 1) if step is rmsprop_step else (ADAM, 2)
    clipped, scaled = vectors(device, count), vectors(device, count)
    norm = step(*clipped, **settings, clip_norm=0.5)
    assert norm.item() == pytest.approx(5.0)
    assert clipped[1].tolist() == [3.0, -4.0]
    scaled[1] *= 0.1
    step(*scaled, **settings, clip_norm=40.0)
    for one, other in zip(clipped[:1] + clipped[2:], scaled[:1] + scaled[2:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("step", [rmsprop_step, adam_step])
def test_a_nan_in_the_gradient_shows_in_norm_and_parameter(step: Any, device: str) -> None:
    settings, count = (RMSPROP, 1) if step is rmsprop_step else (ADAM, 2)
    arrays = vectors(device, count)
    arrays[1][1] = float("nan")
    assert step(*arrays, **settings, clip_norm=1.0).isnan()
    assert arrays[0].isnan().any()


def test_the_same_step_gives_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(10_007, generator=generator) for _ in range(3)] + [torch.rand(10_007)]
    results = []
    for _ in range(2):
        arrays = [x.clone() for x in start]
        norm = adam_step(*arrays, **ADAM, clip_norm=1.0)
        results.append([*arrays, norm])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_parameter_that_needs_a_gradient_is_changed_in_place(device: str) -> None:
    values, gradient, square = vectors(device, 1)
    parameter = torch.nn.Parameter(values)
    rmsprop_step(parameter, gradient, square, **RMSPROP)
    assert values.tolist() != [1.0, 2.0]
    assert parameter.grad is None


def test_errors_name_the_argument() -> None:
    parameter, gradient, mean, square = vectors("cpu", 2)
    with pytest.raises(SpecError, match="parameter has rank 2"):
        rmsprop_step(parameter[None], gradient, square, **RMSPROP)
    with pytest.raises(SpecError, match="gradient is float64"):
        rmsprop_step(parameter, gradient.double(), square, **RMSPROP)
    with pytest.raises(SpecError, match=r"square_average is float32 \[3\] on cpu: expected shape \[2\]"):
        adam_step(parameter, gradient, mean, torch.zeros(3), **ADAM)
    with pytest.raises(SpecError, match="step is 0: expected the number of this step, from 1 on"):
        adam_step(parameter, gradient, mean, square, **{**ADAM, "step": 0})
    with pytest.raises(SpecError, match="clip_norm is 0"):
        rmsprop_step(parameter, gradient, square, **RMSPROP, clip_norm=0)

"""Advantages and n-step returns: numbers worked out by hand, and what masks do."""

from __future__ import annotations

import pytest
import torch

from seedflow.errors import SpecError
from seedflow.kernels import gae, n_step


def column(*numbers: float, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(numbers, device=device).unsqueeze(1)


def test_gae_of_an_episode_that_terminates(device: str) -> None:
    rewards, values = column(0.1, 0.2, 0.3, device=device), column(1.0, 2.0, 3.0, 4.0, device=device)
    discounts = column(0.97, 0.0, 0.97, device=device)
    advantages, returns = gae(rewards, discounts, values, trace_decay=0.5)
    torch.testing.assert_close(advantages, column(0.167, -1.8, 1.18, device=device))
    torch.testing.assert_close(returns, advantages + values[:-1])


def test_gae_around_a_pair_that_is_no_transition(device: str) -> None:
    rewards, values = column(0.1, 0.2, 0.3, device=device), column(1.0, 2.0, 3.0, 4.0, device=device)
    discounts, valid = column(0.97, 0.0, 0.97, device=device), column(True, False, True, device=device)
    advantages, _ = gae(rewards, discounts, values, valid, trace_decay=0.5)
    torch.testing.assert_close(advantages, column(1.04, 0.0, 1.18, device=device))


@pytest.mark.parametrize(
    ("n", "ends", "expected"),
    [
        (1, None, [91.0, 182.0, 273.0]),
        (1, 1, [91.0, 2.0, 273.0]),
        (2, None, [164.8, 247.7, 273.0]),
    ],
)
def test_n_step_returns_of_three_transitions(
    n: int, ends: int | None, expected: list[float], device: str
) -> None:
    rewards = column(1.0, 2.0, 3.0, device=device)
    values = column(0.0, 100.0, 200.0, 300.0, device=device)
    discounts = torch.full_like(rewards, 0.9)
    if ends is not None:
        discounts[ends] = 0.0
    torch.testing.assert_close(n_step(rewards, discounts, values, n=n), column(*expected, device=device))


def test_three_step_returns_of_seven_transitions(device: str) -> None:
    rewards = column(*map(float, range(1, 8)), device=device)
    values = column(*(100.0 * i for i in range(8)), device=device)
    discounts = torch.full_like(rewards, 0.9)
    discounts[3] = 0.0
    expected = column(223.93, 7.94, 6.6, 4.0, 526.37, 579.3, 637.0, device=device)
    torch.testing.assert_close(n_step(rewards, discounts, values, n=3), expected)


def test_an_n_step_return_ends_with_the_value_where_an_episode_ends_unterminated(device: str) -> None:
    rewards = column(1.0, 2.0, 4.0, 8.0, device=device)
    values = column(10.0, 20.0, 30.0, 40.0, 50.0, device=device)
    discounts = column(0.5, 0.5, 0.0, 0.5, device=device)
    valid = column(True, True, False, True, device=device)
    returns = n_step(rewards, discounts, values, valid, n=3)
    expected = column(1 + 0.5 * 2 + 0.25 * 30, 2 + 0.5 * 30, 30.0, 8 + 0.5 * 50, device=device)
    torch.testing.assert_close(returns, expected)


def test_what_lies_between_episodes_does_not_show(device: str) -> None:
    rewards = torch.ones(3, 2, device=device)
    values, discounts = torch.ones(4, 2, device=device), torch.full((3, 2), 0.9, device=device)
    valid = torch.ones(3, 2, dtype=torch.bool, device=device)
    rewards[1, 0], discounts[1, 0], valid[1, 0] = float("nan"), 0.0, False
    assert all(x.isfinite().all() for x in gae(rewards, discounts, values, valid, trace_decay=0.9))
    assert n_step(rewards, discounts, values, valid, n=3).isfinite().all()


def test_results_are_constants_for_the_gradient(device: str) -> None:
    inputs = [torch.ones(n, 2, device=device).requires_grad_() for n in (3, 3, 4)]
    results = [*gae(*inputs, trace_decay=0.9), n_step(*inputs, n=2)]
    assert not any(result.requires_grad for result in results)


def test_errors_name_the_argument() -> None:
    one, two = torch.ones(3, 2), torch.ones(4, 2)
    with pytest.raises(SpecError, match=r"values is float32 \[3, 2\] on cpu: expected shape \[4, 2\]"):
        gae(one, one, one, trace_decay=0.9)
    with pytest.raises(SpecError, match="rewards has rank 1"):
        n_step(one[:, 0], one, two, n=2)
    with pytest.raises(SpecError, match="valid is float32"):
        n_step(one, one, two, one, n=2)
    with pytest.raises(SpecError, match="discounts is float64"):
        n_step(one, one.double(), two, n=2)
    with pytest.raises(SpecError, match="n is 0: expected at least 1 step"):
        n_step(one, one, two, n=0)
    with pytest.raises(SpecError, match=r"out is float32 \[4, 2\]"):
        n_step(one, one, two, n=1, out=two)

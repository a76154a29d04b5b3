"""The fused V-trace loss against autograd of the same loss in plain torch, and what its masks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import VTRACE_LOSS_TERMS, VTraceLoss, vtrace_loss

from .cases import make_vtrace_loss, tensors

CLIPS = {"rho_bar": 1.3, "c_bar": 0.9, "pg_rho_bar": 1.1, "trace_decay": 0.95}
COSTS = {"value_cost": 0.4, "entropy_cost": 0.07}


def inputs(
    device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0, **settings: Any
) -> dict[str, Any]:
    made = make_vtrace_loss(np.random.default_rng(seed), **{"shape": (9, 6), **CLIPS, **COSTS, **settings})
    arguments = tensors(made, device)
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            arguments[name] = value.to(dtype)
    return arguments


def plain(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor,
    splits: tuple[int, ...] | None,
    **settings: float,
) -> Tensor:
    """The loss as a graph of torch's own functions."""
    log_prob, entropy = torch.zeros_like(rewards), torch.zeros_like(rewards)
    chosen = actions.unsqueeze(-1) if splits is None else actions
    for k, part in enumerate(torch.split(logits[:-1], splits or logits.shape[-1], dim=-1)):
        policy = torch.distributions.Categorical(logits=part)
        log_prob = log_prob + policy.log_prob(chosen[..., k])
        entropy = entropy + policy.entropy()
    with torch.no_grad():
        ratio = (log_prob - behaviour_log_probs).exp()
        error, vs = torch.zeros_like(values[0]), values.clone()
        for t in reversed(range(len(rewards))):
            delta = ratio[t].clamp(max=settings["rho_bar"]) * (
                rewards[t] + discounts[t] * values[t + 1] - values[t]
            )
            trace = discounts[t] * settings["trace_decay"] * ratio[t].clamp(max=settings["c_bar"])
            error = valid[t] * delta + trace * error
            vs[t] += error
        advantage = ratio.clamp(max=settings["pg_rho_bar"]) * (rewards + discounts * vs[1:] - values[:-1])
    policy_loss = (-log_prob * advantage)[valid].mean()
    value_loss = 0.5 * (vs - values)[:-1][valid].square().mean()
    return (
        policy_loss + settings["value_cost"] * value_loss - settings["entropy_cost"] * entropy[valid].mean()
    )


@pytest.mark.parametrize("splits", [None, (2, 4, 3)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_autograd(
    splits: tuple[int, ...] | None, dtype: torch.dtype, tolerance: float, seed: int
) -> None:
    arguments = inputs(dtype=dtype, seed=seed, splits=splits)
    gradients = []
    for function in (lambda **x: vtrace_loss(**x).total, plain):
        sources = [arguments[name].clone().requires_grad_() for name in ("logits", "values")]
        loss = function(**{**arguments, "logits": sources[0], "values": sources[1]})
        gradients.append([loss.detach(), *torch.autograd.grad(3.0 * loss, sources)])
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_gradients_are_the_slopes_of_the_loss_where_the_targets_stand_still() -> None:
    # Beyond their clips the ratios have no slope, so that targets and advantages are constants.
    arguments = inputs(dtype=torch.float64, shape=(3, 2), actions=3)
    arguments["behaviour_log_probs"] -= 20.0
    logits = arguments.pop("logits").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: vtrace_loss(logits=x, **arguments).total, logits)


def test_gradients_reach_the_network_behind_the_logits(device: str) -> None:
    arguments = inputs(device)
    weight = torch.full((), 2.0, device=device, requires_grad=True)
    logits = arguments.pop("logits")
    vtrace_loss(logits=weight * logits, **arguments).total.backward()
    source = (2.0 * logits).requires_grad_()
    vtrace_loss(logits=source, **arguments).total.backward()
    assert source.grad is not None
    torch.testing.assert_close(weight.grad, (source.grad * logits).sum())


def test_what_is_reported_is_constant_and_begins_with_the_loss(device: str) -> None:
    arguments = inputs(device)
    arguments["logits"].requires_grad_()
    loss = vtrace_loss(**arguments)
    assert loss.total.requires_grad
    assert not loss.terms.requires_grad
    terms = dict(zip(VTRACE_LOSS_TERMS, loss.terms.tolist(), strict=True))
    assert terms["total"] == loss.total.item()
    total = terms["policy"] + 0.4 * terms["value"] - 0.07 * terms["entropy"]
    assert terms["total"] == pytest.approx(total, rel=1e-5)
    with torch.no_grad():
        assert not vtrace_loss(**arguments).total.requires_grad


def test_a_second_derivative_is_refused() -> None:
    arguments = inputs()
    logits, scale = arguments["logits"].requires_grad_(), torch.ones((), requires_grad=True)
    (slope,) = torch.autograd.grad(scale * vtrace_loss(**arguments).total, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def with_gradients(arguments: dict[str, Any]) -> tuple[VTraceLoss, Tensor, Tensor]:
    sources = [arguments[name].requires_grad_() for name in ("logits", "values")]
    loss = vtrace_loss(**arguments)
    logits, values = torch.autograd.grad(loss.total, sources)
    return loss, logits, values


def test_without_a_valid_transition_everything_is_zero(device: str) -> None:
    arguments = inputs(device)
    arguments["valid"][:], arguments["discounts"][:] = False, 0.0
    loss, d_logits, d_values = with_gradients(arguments)
    assert loss.total.item() == 0.0
    assert dict(zip(VTRACE_LOSS_TERMS, loss.terms.tolist(), strict=True)) == {
        **dict.fromkeys(VTRACE_LOSS_TERMS, 0.0),
        "explained_variance": 1.0,
    }
    assert not d_logits.any()
    assert not d_values.any()


def test_what_lies_between_episodes_does_not_show(device: str) -> None:
    clean = inputs(device)
    clean["valid"][3], clean["discounts"][3] = False, 0.0
    expected = with_gradients(clean)
    spoiled = inputs(device)
    spoiled["valid"][3], spoiled["discounts"][3] = False, 0.0
    for name in ("logits", "rewards", "behaviour_log_probs"):
        spoiled[name][3] = float("nan")
    spoiled["logits"][-1] = float("nan")  # the last index only bootstraps
    loss, d_logits, d_values = with_gradients(spoiled)
    torch.testing.assert_close(loss.terms, expected[0].terms)
    torch.testing.assert_close(d_logits, expected[1])
    torch.testing.assert_close(d_values, expected[2])


def test_impossible_actions_have_neither_entropy_nor_gradient(device: str) -> None:
    arguments = inputs(device, impossible=0.5)
    barred = arguments["logits"] == -float("inf")
    assert barred.any()
    loss, d_logits, d_values = with_gradients(arguments)
    assert loss.terms.isfinite().all()
    assert d_values.isfinite().all()
    assert not d_logits[barred].any()
    assert d_logits.isfinite().all()
    assert d_logits[:-1][arguments["valid"]].any()


def test_the_flag_falls_with_a_loss_that_is_not_finite_and_stays_down(device: str) -> None:
    finite = torch.ones((), dtype=torch.int32, device=device)
    vtrace_loss(**inputs(device), finite=finite)
    assert finite.item() == 1
    for name, value in (("values", float("nan")), ("rewards", float("inf")), ("logits", float("nan"))):
        spoiled = inputs(device, masked=False)
        spoiled[name][2, 1] = value
        finite.fill_(1)
        with_gradients({**spoiled, "finite": finite})
        assert finite.item() == 0, name
    vtrace_loss(**inputs(device), finite=finite)
    assert finite.item() == 0


def test_errors_name_the_argument() -> None:
    def error(**changes: Any) -> str:
        with pytest.raises(SpecError) as caught:
            vtrace_loss(**{**inputs(), **changes})
        return str(caught.value)

    arguments = inputs()
    logits, values, actions = arguments["logits"], arguments["values"], arguments["actions"]
    assert error(logits=logits[0]).startswith("logits has rank 2")
    assert "logits is float64" in error(logits=logits.double())
    assert "logits is bfloat16" in error(logits=logits.bfloat16(), values=values.double())
    assert "values is float16" in error(values=values.half())
    assert "values is float32 [9, 6] on cpu: expected shape [10, 6]" in error(values=values[1:])
    assert error(logits=logits[:1], values=values[:1]).endswith("expected at least 2 indices, one transition")
    assert "actions is int32" in error(actions=actions.int())
    assert "rewards is float64" in error(rewards=arguments["rewards"].double())
    assert "valid is float32" in error(valid=arguments["rewards"])
    assert "finite is float32" in error(finite=torch.ones(()))
    assert "splits is [2, 2]: expected positive numbers with the sum 5" in error(splits=(2, 2))
    assert "actions has rank 2" in error(splits=(2, 3))
    spoiled = actions.clone()
    spoiled[4, 3] = 5
    assert (
        error(actions=spoiled) == "actions[4, 3] is 5: expected 0 <= actions[4, 3] < 5, its number of logits"
    )
    parts = torch.stack([actions % 2, actions % 3], dim=-1)
    parts[8, 5, 1] = -1
    assert error(actions=parts, splits=(2, 3)).startswith(
        "actions[8, 5, 1] is -1: expected 0 <= actions[8, 5, 1] < 3"
    )

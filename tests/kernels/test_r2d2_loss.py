"""The fused R2D2 loss: numbers worked out by hand, and autograd of the same loss in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import R2D2_LOSS_TERMS, R2D2Loss, r2d2_loss
from seedflow.kernels.r2d2_loss import inverse_rescale, rescale

from .cases import make_r2d2_loss, tensors

ACT, BEST = 0, 1  # what was done everywhere below, and what the online network prefers


def sequence(
    device: str,
    *,
    terminated: Sequence[int] = (),
    truncated: Sequence[int] = (),
    first: Sequence[int] = (),
    burn_in: int = 0,
    n_step: int = 3,
    weight: float = 1.0,
    **changes: Any,
) -> dict[str, Any]:
    """One sequence of six indices: reward j at index j, q*_j = 100 j, Q(o_t, a_t) = 0, discount 1/2.

    So targets can be worked out in the head, and TD errors are h of them.
    """
    indices = torch.arange(6.0, device=device)
    flags = {
        name: torch.tensor([i in places for i in range(6)], device=device).unsqueeze(1)
        for name, places in (("terminated", terminated), ("truncated", truncated), ("first", first))
    }
    q_online = torch.tensor([0.0, 1.0], device=device).expand(6, 1, 2).contiguous()
    q_target = torch.stack([torch.full_like(indices, -7.0), rescale(100.0 * indices, 0.0)], dim=-1)
    return {
        "q_online": q_online,
        "q_target": q_target.unsqueeze(1),
        "actions": torch.full((6, 1), ACT, device=device),
        "rewards": indices.unsqueeze(1),
        **flags,
        "weights": torch.tensor([weight], device=device),
        "burn_in": burn_in,
        "n_step": n_step,
        "discount": 0.5,
        "rescale_epsilon": 0.0,
        "eta": 0.9,
        **changes,
    }


def targets(loss: R2D2Loss) -> list[float]:
    """The targets before rescaling, as Q(o_t, a_t) is zero."""
    return [round(y, 3) for y in inverse_rescale(loss.td_errors[:, 0].double(), 0.0).tolist()]


Y0 = 1 + 2 / 2 + 3 / 4 + 300 / 8
Y1 = 2 + 3 / 2 + 4 / 4 + 400 / 8
Y2 = 3 + 4 / 2 + 5 / 4 + 500 / 8
Y3, Y4 = 4 + 5 / 2 + 500 / 4, 5 + 500 / 2  # the sequence's end in the window


def test_targets_without_an_episodes_end_reach_n_steps_or_the_end_of_the_sequence(device: str) -> None:
    assert targets(r2d2_loss(**sequence(device))) == [Y0, Y1, Y2, Y3, Y4, 0.0]


def test_a_truncated_index_in_the_window_bootstraps_there(device: str) -> None:
    loss = r2d2_loss(**sequence(device, truncated=[3], first=[4]))
    assert targets(loss) == [Y0, 2 + 3 / 2 + 300 / 4, 3 + 300 / 2, 0.0, Y4, 0.0]


@pytest.mark.parametrize("truncated", [[], [3]])
def test_a_terminated_index_in_the_window_does_not_and_wins_over_truncation(
    truncated: list[int], device: str
) -> None:
    loss = r2d2_loss(**sequence(device, terminated=[3], truncated=truncated, first=[4]))
    assert targets(loss) == [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3.0, 0.0, Y4, 0.0]


def test_a_life_lost_terminates_though_the_next_transition_is_valid(device: str) -> None:
    loss = r2d2_loss(**sequence(device, terminated=[3]))
    assert targets(loss) == [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3.0, Y3, Y4, 0.0]


def test_an_episode_that_begins_without_a_flag_before_it_bootstraps_there(device: str) -> None:
    loss = r2d2_loss(**sequence(device, first=[3]))
    assert targets(loss) == [1 + 2 / 2 + 200 / 4, 2 + 200 / 2, 0.0, Y3, Y4, 0.0]


def test_a_beginning_inside_the_burn_in_changes_no_target(device: str) -> None:
    loss = r2d2_loss(**sequence(device, burn_in=2, terminated=[0], first=[1]))
    assert targets(loss) == [0.0, 0.0, Y2, Y3, Y4, 0.0]


def test_a_beginning_at_the_first_trained_index_changes_no_target(device: str) -> None:
    loss = r2d2_loss(**sequence(device, burn_in=2, terminated=[1], first=[2]))
    assert targets(loss) == [0.0, 0.0, Y2, Y3, Y4, 0.0]


def test_a_sequence_without_a_valid_index_has_no_loss_and_the_smallest_priority(device: str) -> None:
    arguments = sequence(device, burn_in=3, first=[4, 5])
    arguments["q_online"].requires_grad_()
    loss = r2d2_loss(**arguments)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert loss.priorities.tolist() == [pytest.approx(1e-6)]
    assert loss.terms.tolist() == [0.0] * 4
    assert not arguments["q_online"].grad.any()


def test_loss_priority_and_gradient_of_two_errors(device: str) -> None:
    arguments = sequence(device, burn_in=3, n_step=1, weight=0.5)  # y = 4 + 400 / 2, 5 + 500 / 2
    arguments["q_online"].requires_grad_()
    loss = r2d2_loss(**arguments)
    loss.total.backward()
    small, large = 205**0.5 - 1, 256**0.5 - 1
    assert loss.total.item() == pytest.approx(0.5 * 0.5 * (small**2 + large**2), rel=1e-6)
    assert loss.priorities.tolist() == [pytest.approx(0.9 * large + 0.1 * (small + large) / 2, rel=1e-6)]
    terms = dict(zip(R2D2_LOSS_TERMS, loss.terms.tolist(), strict=True))
    mean = pytest.approx((small + large) / 2, rel=1e-6)
    assert terms == {"total": loss.total.item(), "td_error": mean, "value": 0.0, "target": mean}
    expected = torch.zeros(6, 1, 2, device=device)
    expected[3, 0, ACT], expected[4, 0, ACT] = -0.5 * small, -0.5 * large
    torch.testing.assert_close(arguments["q_online"].grad, expected)


def test_the_loss_is_a_mean_over_sequences(device: str) -> None:
    one = sequence(device)
    doubled = {
        name: torch.cat([x, x], dim=0 if name == "weights" else 1) if isinstance(x, Tensor) else x
        for name, x in one.items()
    }
    assert r2d2_loss(**doubled).total.item() == pytest.approx(r2d2_loss(**one).total.item(), rel=1e-6)


def test_priorities_from_acting_time_are_those_of_equal_networks(device: str) -> None:
    arguments = tensors(make_r2d2_loss(np.random.default_rng(2)), device)
    q = arguments["q_online"]
    taken = q.gather(-1, arguments["actions"].unsqueeze(-1))
    kept = torch.cat([taken, q.amax(dim=-1, keepdim=True)], dim=-1)
    complete = r2d2_loss(**{**arguments, "q_target": q})
    fields = {"q_online": kept, "q_target": kept, "actions": torch.zeros_like(arguments["actions"])}
    torch.testing.assert_close(r2d2_loss(**{**arguments, **fields}).priorities, complete.priorities)


def test_rescaling_has_these_values_and_an_inverse() -> None:
    x = torch.tensor([0.0, 3.0, -3.0, 1.0, 10.0, 100.0, 1000.0])
    expected = torch.tensor([0.0, 1.003, -1.003, 0.415214, 2.326625, 9.149876, 31.638584])
    torch.testing.assert_close(rescale(x, 1e-3), expected, rtol=1e-6, atol=1e-6)
    x = torch.linspace(-1000.0, 1000.0, 20_001)
    torch.testing.assert_close(inverse_rescale(rescale(x, 1e-3), 1e-3), x, rtol=3e-6, atol=1e-6)
    tiny = torch.tensor([1e-3, -1e-6, 1e-20])
    torch.testing.assert_close(inverse_rescale(rescale(tiny, 1e-3), 1e-3), tiny, rtol=3e-6, atol=0.0)


def plain(q_online: Tensor, q_target: Tensor, **arguments: Any) -> Tensor:
    """The loss as a graph of torch's own functions, one index after the other."""
    flags = {name: arguments[name] for name in ("terminated", "truncated", "first")}
    indices, batch = arguments["actions"].shape
    epsilon, discount, loss = arguments["rescale_epsilon"], arguments["discount"], q_online.new_zeros(())
    for b in range(batch):
        for t in range(arguments["burn_in"], indices - 1):
            if flags["first"][t + 1, b]:
                continue
            y, factor, j = torch.zeros_like(loss), 1.0, t
            while j < min(t + arguments["n_step"], indices - 1) and not flags["first"][j + 1, b]:
                j += 1
                y = y + factor * arguments["rewards"][j, b]
                factor *= discount
                if flags["terminated"][j, b] or flags["truncated"][j, b]:
                    break
            if not flags["terminated"][j, b] or j == t:
                chosen = q_target[j, b, q_online[j, b].detach().argmax()]
                y = y + factor * inverse_rescale(chosen, epsilon)
            td = rescale(y, epsilon) - q_online[t, b, arguments["actions"][t, b]]
            loss = loss + 0.5 * arguments["weights"][b] * td.square() / batch
    return loss


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_autograd(dtype: torch.dtype, tolerance: float, seed: int) -> None:
    arguments = tensors(make_r2d2_loss(np.random.default_rng(seed), ends=0.3), "cpu")
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            arguments[name] = value.to(dtype)
    gradients = []
    for function in (lambda **x: r2d2_loss(**x).total, plain):
        source = arguments["q_online"].clone().requires_grad_()
        loss = function(**{**arguments, "q_online": source})
        gradients.append([loss.detach(), *torch.autograd.grad(3.0 * loss, source)])
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype is dtype
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_gradients_are_the_slopes_of_the_loss() -> None:
    arguments = tensors(make_r2d2_loss(np.random.default_rng(1), shape=(7, 2), burn_in=1), "cpu")
    for name in ("q_online", "q_target", "rewards", "weights"):
        arguments[name] = arguments[name].double()
    source = arguments.pop("q_online").requires_grad_()
    assert torch.autograd.gradcheck(lambda x: r2d2_loss(q_online=x, **arguments).total, source)


def test_what_is_reported_is_constant(device: str) -> None:
    arguments = sequence(device)
    arguments["q_online"].requires_grad_()
    loss = r2d2_loss(**arguments)
    assert [x.requires_grad for x in loss] == [True, False, False, False]


@pytest.mark.parametrize("name", ["q_online", "q_target", "rewards"])
def test_the_flag_falls_with_a_loss_that_is_not_finite(name: str, device: str) -> None:
    finite = torch.ones((), dtype=torch.int32, device=device)
    arguments = sequence(device)
    r2d2_loss(**arguments, finite=finite)
    assert finite.item() == 1
    arguments[name][3] = float("nan")
    r2d2_loss(**arguments, finite=finite)
    assert finite.item() == 0


def test_errors_name_the_argument() -> None:
    def error(**changes: Any) -> str:
        with pytest.raises(SpecError) as caught:
            r2d2_loss(**{**sequence("cpu"), **changes})
        return str(caught.value)

    arguments = sequence("cpu")
    assert error(q_online=arguments["rewards"]).startswith("q_online has rank 2")
    assert "q_online is float16" in error(q_online=arguments["q_online"].half())
    assert "q_target is float64" in error(q_target=arguments["q_target"].double())
    assert "terminated is float32" in error(terminated=arguments["rewards"])
    assert "weights is float32 [2] on cpu: expected shape [1]" in error(weights=torch.ones(2))
    assert error(burn_in=5).startswith("burn_in is 5: expected 0 <= burn_in < 5")
    assert error(burn_in=-1).startswith("burn_in is -1")
    assert error(n_step=0).startswith("n_step is 0")
    assert "finite is bool" in error(finite=torch.tensor(True))
    actions = arguments["actions"].clone()
    actions[2, 0] = 2
    assert error(actions=actions) == "actions[2, 0] is 2: expected 0 <= actions[2, 0] < 2"

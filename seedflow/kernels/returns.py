"""Returns of on-policy methods: generalized advantage estimation and n-step returns.

Schulman et al. 2016, arXiv 1506.02438, and Sutton & Barto 2018, section 7.1, with the masks of
`seedflow.kernels.vtrace`: transition ``t`` leads from index ``t`` to ``t + 1``; where it is none, the trace
stops and the value at index t stands for what follows::

    delta_t = valid_t * (r_t + discount_t * V_{t+1} - V_t)
    adv_t   = delta_t + discount_t * lambda * adv_{t+1},   adv_T = 0

    G^0_t = V_t;   G^n_t = r_t + discount_t * G^{n-1}_{t+1},  but V_t where t = T or valid_t is false
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.jit import cpu_kernel
from seedflow.kernels.registry import constant, define, register, twin

define(
    "gae",
    "Tensor rewards, Tensor discounts, Tensor values, Tensor? valid, float trace_decay, "
    "Tensor(a!) advantages, Tensor(b!) returns",
)
define("n_step", "Tensor rewards, Tensor discounts, Tensor values, Tensor? valid, int n, Tensor(a!) returns")


class GaeReturns(NamedTuple):
    """Advantages, and returns = advantages + values, float32 ``[T, B, ...]``."""

    advantages: Tensor
    returns: Tensor


def gae(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None = None,
    *,
    trace_decay: float,
    out: GaeReturns | None = None,
) -> GaeReturns:
    """Compute generalized advantage estimates, constants for the gradient.

    Parameters
    ----------
    rewards, discounts
        Of the transition from index t to t + 1, float32 ``[T, B, ...]``; the discount is zero where it
        terminates the episode or is not valid.
    values
        Value estimates of all indices, the bootstrap value last, float32 ``[T + 1, B, ...]``.
    valid
        Whether the transition is one, bool ``[T, B, ...]``: false where index t + 1 begins another
        episode. There the advantage is zero. None: all are valid.
    trace_decay
        Lambda: 1 looks as far as the unroll reaches, 0 gives one-step errors.
    out
        Contiguous tensors to write to; none of them may share memory with an input.

    Returns
    -------
    GaeReturns
        `out`, or new tensors.

    Raises
    ------
    SpecError
        When an argument has another shape, dtype or device than stated here, or is not contiguous.

    Examples
    --------
    >>> rewards = torch.tensor([[0.5], [0.25]])
    >>> gae(rewards, torch.full((2, 1), 0.5), torch.ones(3, 1), trace_decay=1).advantages.tolist()
    [[-0.125], [-0.25]]
    """
    shape, device = _check(rewards, discounts, values, valid)
    if out is None:
        out = GaeReturns(torch.empty_like(rewards), torch.empty_like(rewards))
    else:
        axes = "[T, B, ...] as rewards"
        checks.check_array("out.advantages", out.advantages, shape, torch.float32, device, axes)
        checks.check_array("out.returns", out.returns, shape, torch.float32, device, axes)
    arrays = constant(rewards), constant(discounts), constant(values), valid
    twin("gae", device.type)(*arrays, trace_decay, out.advantages, out.returns)
    return out


def n_step(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None = None,
    *,
    n: int,
    out: Tensor | None = None,
) -> Tensor:
    """Compute n-step returns, constants for the gradient.

    Parameters
    ----------
    rewards, discounts, values, valid
        As for `gae`. Where a transition is not valid, the return is the value.
    n
        Rewards that are summed before the value estimate of the index reached, at least 1; fewer where
        the unroll ends, or an episode does.
    out
        A contiguous tensor to write to; it may not share memory with an input.

    Returns
    -------
    Tensor
        `out`, or a new tensor, float32 ``[T, B, ...]``.

    Raises
    ------
    SpecError
        When an argument has another shape, dtype or device than stated here, is not contiguous, or n is
        not positive.

    Examples
    --------
    >>> one = torch.ones(3, 1)
    >>> n_step(one, 0.5 * one, torch.full((4, 1), 8.0), n=2).flatten().tolist()
    [3.5, 3.5, 5.0]
    """
    shape, device = _check(rewards, discounts, values, valid)
    if n < 1:
        raise SpecError(f"n is {n}: expected at least 1 step")
    if out is None:
        out = torch.empty_like(rewards)
    else:
        checks.check_array("out", out, shape, torch.float32, device, "[T, B, ...] as rewards")
    twin("n_step", device.type)(constant(rewards), constant(discounts), constant(values), valid, n, out)
    return out


def _check(
    rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor | None
) -> tuple[torch.Size, torch.device]:
    checks.check_rank("rewards", rewards, 2, "[T, B, ...]")
    shape, device, axes = rewards.shape, rewards.device, "[T, B, ...] as rewards"
    checks.check_array("rewards", rewards, shape, torch.float32, device, axes)
    checks.check_array("discounts", discounts, shape, torch.float32, device, axes)
    shape_tp1 = (shape[0] + 1, *shape[1:])
    checks.check_array(
        "values", values, shape_tp1, torch.float32, device, "[T + 1, B, ...] with rewards' T, B"
    )
    if valid is not None:
        checks.check_array("valid", valid, shape, torch.bool, device, axes)
    return shape, device


@register("gae", "torch")
def _gae_torch(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    trace_decay: float,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    delta = rewards + discounts * values[1:] - values[:-1]
    if valid is not None:
        delta.masked_fill_(~valid, 0.0)
    following = torch.zeros_like(values[0])
    for t in reversed(range(rewards.shape[0])):
        following = delta[t] + (discounts[t] * trace_decay * following).masked_fill(discounts[t] == 0, 0.0)
        advantages[t] = following
    torch.add(advantages, values[:-1], out=returns)


@register("n_step", "torch")
def _n_step_torch(
    rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor | None, n: int, returns: Tensor
) -> None:
    following = values  # G^0, then G^1, ...; the last row stays V_T
    for _ in range(min(n, rewards.shape[0])):
        step = rewards + (discounts * following[1:]).masked_fill(discounts == 0, 0.0)
        if valid is not None:
            step = torch.where(valid, step, values[:-1])
        following = torch.cat([step, values[-1:]])
    returns.copy_(following[:-1])


@register("gae", "cpu")
def _gae_cpu(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    trace_decay: float,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    steps, columns = rewards.shape[0], math.prod(rewards.shape[1:])
    flat = (steps, columns)
    _gae(
        rewards.numpy().reshape(flat),
        discounts.numpy().reshape(flat),
        values.numpy().reshape(steps + 1, columns),
        None if valid is None else valid.numpy().reshape(flat),
        trace_decay,
        advantages.numpy().reshape(flat),
        returns.numpy().reshape(flat),
    )


@register("n_step", "cpu")
def _n_step_cpu(
    rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor | None, n: int, returns: Tensor
) -> None:
    steps, columns = rewards.shape[0], math.prod(rewards.shape[1:])
    flat = (steps, columns)
    _n_step(
        rewards.numpy().reshape(flat),
        discounts.numpy().reshape(flat),
        values.numpy().reshape(steps + 1, columns),
        None if valid is None else valid.numpy().reshape(flat),
        n,
        returns.numpy().reshape(flat),
    )


# What follows is compiled by Numba: a row of columns at a time, a loop that the compiler vectorizes.


@cpu_kernel
def _gae_row(
    r_t: np.ndarray,
    discount_t: np.ndarray,
    v_t: np.ndarray,
    v_tp1: np.ndarray,
    following: np.ndarray,
    valid: np.ndarray | None,
    t: int,
    trace_decay: np.float32,
    advantage_t: np.ndarray,
    return_t: np.ndarray,
) -> None:
    zero = np.float32(0.0)
    for b in range(r_t.shape[0]):
        delta = r_t[b] + discount_t[b] * v_tp1[b] - v_t[b]
        if valid is not None:  # decided when compiling, as None is a type of its own
            delta = delta if valid[t, b] else zero
        carry = discount_t[b] * trace_decay * following[b]
        advantage = delta + (carry if discount_t[b] != zero else zero)
        advantage_t[b] = advantage
        return_t[b] = advantage + v_t[b]


@cpu_kernel
def _gae(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None,
    trace_decay: float,
    advantages: np.ndarray,
    returns: np.ndarray,
) -> None:
    steps, columns = rewards.shape
    nothing = np.zeros(columns, np.float32)
    for i in range(steps):
        t = steps - 1 - i
        _gae_row(
            rewards[t],
            discounts[t],
            values[t],
            values[t + 1],
            advantages[t + 1] if i > 0 else nothing,
            valid,
            t,
            np.float32(trace_decay),
            advantages[t],
            returns[t],
        )


@cpu_kernel
def _n_step_row(
    r_t: np.ndarray,
    discount_t: np.ndarray,
    v_t: np.ndarray,
    valid: np.ndarray | None,
    t: int,
    following: np.ndarray,
    return_t: np.ndarray,
) -> None:
    zero = np.float32(0.0)
    for b in range(r_t.shape[0]):
        rest = discount_t[b] * following[b]
        step = r_t[b] + (rest if discount_t[b] != zero else zero)
        if valid is not None:
            step = step if valid[t, b] else v_t[b]
        return_t[b] = step


@cpu_kernel
def _n_step(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None,
    n: int,
    returns: np.ndarray,
) -> None:
    steps = rewards.shape[0]
    for i in range(steps):
        t = steps - 1 - i
        if i < n:  # the window reaches the end, as the next index' does: one step more is enough
            following = returns[t + 1] if i > 0 else values[steps]
            _n_step_row(rewards[t], discounts[t], values[t], valid, t, following, returns[t])
            continue
        following = values[t + n]
        for k in range(n):
            j = t + n - 1 - k
            _n_step_row(rewards[j], discounts[j], values[j], valid, j, following, returns[t])
            following = returns[t]

"""V-trace: targets and advantages of an off-policy actor-critic.

Espeholt et al. 2018, "IMPALA", arXiv 1802.01561, section 4.1. With transition ``t`` leading from index
``t`` to ``t + 1`` of an unroll::

    ratio_t = exp(log pi(a_t) - log mu(a_t))
    rho_t   = min(rho_bar, ratio_t)
    c_t     = lambda * min(c_bar, ratio_t)
    delta_t = valid_t * rho_t * (r_t + discount_t * V_{t+1} - V_t)
    e_t     = delta_t + discount_t * c_t * e_{t+1},    e_T = 0
    vs_t    = V_t + e_t,                               vs_T = V_T
    adv_t   = valid_t * min(pg_rho_bar, ratio_t) * (r_t + discount_t * vs_{t+1} - V_t)

Scan over time, rows of the batch side by side: each step of the scan is a loop without dependencies,
which the compiler vectorizes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels import checks
from seedflow.kernels.elementary import exp
from seedflow.kernels.jit import cpu_kernel
from seedflow.kernels.registry import constant, define, register, twin

define(
    "vtrace",
    "Tensor log_rhos, Tensor rewards, Tensor discounts, Tensor values, Tensor? valid, "
    "float rho_bar, float c_bar, float pg_rho_bar, float trace_decay, "
    "Tensor(a!) vs, Tensor(b!) advantages",
)


class VTraceReturns(NamedTuple):
    """Targets of the value function and advantages of the policy, float32 ``[T, B, ...]``."""

    vs: Tensor
    advantages: Tensor


def vtrace(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None = None,
    *,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    out: VTraceReturns | None = None,
) -> VTraceReturns:
    """Compute V-trace targets and advantages, both constants for the gradient.

    Parameters
    ----------
    log_rhos
        ``log pi(a_t) - log mu(a_t)``, target against behaviour policy, float32 ``[T, B, ...]``.
    rewards
        Reward of the transition from index t to t + 1, float32 ``[T, B, ...]``.
    discounts
        Discount of that transition, float32 ``[T, B, ...]``; zero where it terminates the episode or
        is not valid.
    values
        Value estimates of all indices, the bootstrap value last, float32 ``[T + 1, B, ...]``.
    valid
        Whether the transition is one, bool ``[T, B, ...]``: false where index t + 1 begins another
        episode. There the target is the value itself and the advantage zero. None: all are valid.
    rho_bar, c_bar, pg_rho_bar
        Clips of the importance ratio: in the target's fixed point, in the trace, in the policy gradient.
    trace_decay
        Lambda: 1 looks as far as the trace reaches, 0 gives one-step targets.
    out
        Contiguous tensors to write to; none of them may share memory with an input.

    Returns
    -------
    VTraceReturns
        `out`, or new tensors.

    Raises
    ------
    SpecError
        When an argument has another shape, dtype or device than stated here, or is not contiguous.

    Notes
    -----
    A NaN in a valid transition shows up in the results; log ratios beyond 88 count as 88.

    Examples
    --------
    On policy and with trace_decay 1, the target is the discounted return:

    >>> one = torch.ones(3, 1)
    >>> vtrace(0 * one, one, 0.5 * one, torch.zeros(4, 1), rho_bar=1, c_bar=1, pg_rho_bar=1,
    ...        trace_decay=1).vs.flatten().tolist()
    [1.75, 1.5, 1.0]
    """
    checks.check_rank("log_rhos", log_rhos, 2, "[T, B, ...]")
    shape, device, axes = log_rhos.shape, log_rhos.device, "[T, B, ...] as log_rhos"
    checks.check_array("log_rhos", log_rhos, shape, torch.float32, device, axes)
    checks.check_array("rewards", rewards, shape, torch.float32, device, axes)
    checks.check_array("discounts", discounts, shape, torch.float32, device, axes)
    shape_tp1 = (shape[0] + 1, *shape[1:])
    checks.check_array(
        "values", values, shape_tp1, torch.float32, device, "[T + 1, B, ...] with log_rhos' T, B"
    )
    if valid is not None:
        checks.check_array("valid", valid, shape, torch.bool, device, axes)
    if out is None:
        out = VTraceReturns(torch.empty_like(rewards), torch.empty_like(rewards))
    else:
        checks.check_array("out.vs", out.vs, shape, torch.float32, device, axes)
        checks.check_array("out.advantages", out.advantages, shape, torch.float32, device, axes)
    twin("vtrace", device.type)(
        constant(log_rhos),
        constant(rewards),
        constant(discounts),
        constant(values),
        valid,
        rho_bar,
        c_bar,
        pg_rho_bar,
        trace_decay,
        out.vs,
        out.advantages,
    )
    return out


@register("vtrace", "torch")
def _vtrace_torch(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    vs: Tensor,
    advantages: Tensor,
) -> None:
    ratio = log_rhos.clamp(max=88.0).exp()
    delta = ratio.clamp(max=rho_bar) * (rewards + discounts * values[1:] - values[:-1])
    carry = discounts * (trace_decay * ratio.clamp(max=c_bar))
    carry.masked_fill_(discounts == 0, 0.0)
    if valid is not None:
        delta.masked_fill_(~valid, 0.0)
    error = torch.zeros_like(values[0])
    for t in reversed(range(log_rhos.shape[0])):
        error = delta[t] + carry[t] * error
        torch.add(values[t], error, out=vs[t])
    vs_tp1 = torch.cat([vs[1:], values[-1:]])
    torch.mul(ratio.clamp(max=pg_rho_bar), rewards + discounts * vs_tp1 - values[:-1], out=advantages)
    if valid is not None:
        advantages.masked_fill_(~valid, 0.0)


@register("vtrace", "cpu")
def _vtrace_cpu(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    vs: Tensor,
    advantages: Tensor,
) -> None:
    steps, columns = log_rhos.shape[0], math.prod(log_rhos.shape[1:])
    flat = (steps, columns)
    _scan(
        log_rhos.numpy().reshape(flat),
        rewards.numpy().reshape(flat),
        discounts.numpy().reshape(flat),
        values.numpy().reshape(steps + 1, columns),
        None if valid is None else valid.numpy().reshape(flat),
        rho_bar,
        c_bar,
        pg_rho_bar,
        trace_decay,
        vs.numpy().reshape(flat),
        advantages.numpy().reshape(flat),
    )


# What follows is compiled by Numba. Scalars are float32 throughout: one float64 among them would widen
# every operation that it touches. Comparisons are written so that a NaN passes through a clip.


@cpu_kernel
def _row(
    log_rho_t: np.ndarray,
    r_t: np.ndarray,
    discount_t: np.ndarray,
    v_t: np.ndarray,
    v_tp1: np.ndarray,
    vs_tp1: np.ndarray,
    valid: np.ndarray | None,
    t: int,
    rho_bar: np.float32,
    c_bar: np.float32,
    pg_rho_bar: np.float32,
    trace_decay: np.float32,
    vs_t: np.ndarray,
    advantage_t: np.ndarray,
) -> None:
    zero = np.float32(0.0)
    for b in range(log_rho_t.shape[0]):
        ratio = exp(log_rho_t[b])
        rho = rho_bar if ratio > rho_bar else ratio
        c = trace_decay * (c_bar if ratio > c_bar else ratio)
        pg_rho = pg_rho_bar if ratio > pg_rho_bar else ratio
        delta = rho * (r_t[b] + discount_t[b] * v_tp1[b] - v_t[b])
        carry = discount_t[b] * c * (vs_tp1[b] - v_tp1[b])
        carry = carry if discount_t[b] != zero else zero
        advantage = pg_rho * (r_t[b] + discount_t[b] * vs_tp1[b] - v_t[b])
        if valid is not None:  # decided when compiling, as None is a type of its own
            ok = valid[t, b]
            delta = delta if ok else zero
            advantage = advantage if ok else zero
        vs_t[b] = v_t[b] + (delta + carry)
        advantage_t[b] = advantage


@cpu_kernel
def _scan(
    log_rhos: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    vs: np.ndarray,
    advantages: np.ndarray,
) -> None:
    steps = log_rhos.shape[0]
    for i in range(steps):
        t = steps - 1 - i
        _row(
            log_rhos[t],
            rewards[t],
            discounts[t],
            values[t],
            values[t + 1],
            vs[t + 1] if i > 0 else values[steps],
            valid,
            t,
            np.float32(rho_bar),
            np.float32(c_bar),
            np.float32(pg_rho_bar),
            np.float32(trace_decay),
            vs[t],
            advantages[t],
        )

"""The V-trace loss of a categorical policy, from logits to gradients.

Log-softmax, importance ratios, the backward scan of `seedflow.kernels.vtrace`, the terms of the loss and
their gradients in one pass over the batch. With ``n`` valid transitions, and vs and adv constants for
the gradient::

    policy  = -1/n sum_t log pi(a_t) adv_t
    value   =  1/n sum_t 0.5 (vs_t - V_t)^2
    entropy = -1/n sum_t sum_a pi(a) log pi(a)
    total   = policy + value_cost value - entropy_cost entropy

Each term is a *mean* over valid transitions, where IMPALA took sums: learning rate, RMSProp's epsilon and
gradient clipping do not carry over from there unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.fused_loss import define_loss
from seedflow.kernels.registry import PORTABLE, constant, register, twins
from seedflow.kernels.vtrace_loss_cpu import loss_and_gradients

VTRACE_LOSS_TERMS = (
    "total",
    "policy",
    "value",
    "entropy",
    "value_error",
    "explained_variance",
    "rho_clipped",
    "c_clipped",
)
"""What `VTraceLoss.terms` holds: after the loss and its terms the mean of |vs_t - V_t|, the share of the
variance of vs_t that V_t explains, and the shares of ratios beyond rho_bar and c_bar."""


class VTraceLoss(NamedTuple):
    """The loss, a scalar that can be differentiated, and `VTRACE_LOSS_TERMS`, constants ``[8]``."""

    total: Tensor
    terms: Tensor


def _allocate(logits: Tensor, values: Tensor, *_: object) -> tuple[Tensor, ...]:
    terms = values.new_empty(len(VTRACE_LOSS_TERMS))
    return values.new_empty(()), terms, torch.empty_like(logits), torch.empty_like(values)


_loss = define_loss(
    "vtrace_loss",
    "Tensor logits, Tensor values, Tensor actions, Tensor behaviour_log_probs, Tensor rewards, "
    "Tensor discounts, Tensor? valid, int[] splits, float rho_bar, float c_bar, float pg_rho_bar, "
    "float trace_decay, float value_cost, float entropy_cost",
    ("total", "terms", "d_logits", "d_values"),
    _allocate,
    differentiable=2,
)


def vtrace_loss(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor | None = None,
    *,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    value_cost: float,
    entropy_cost: float,
    splits: Sequence[int] | None = None,
    finite: Tensor | None = None,
) -> VTraceLoss:
    """Compute the V-trace loss and keep its gradients with respect to logits and values.

    Parameters
    ----------
    logits
        Of the target policy at all indices, ``[T + 1, B, A]``, float32 or bfloat16; those of the last
        index are not used. An action whose logit is -inf is impossible.
    values
        Value estimates at all indices, the bootstrap value last, float32 ``[T + 1, B]``.
    actions
        What was done, int64 ``[T, B]``; ``[T, B, K]`` where there are `splits`.
    behaviour_log_probs
        Log-probability of that under the policy that acted, float32 ``[T, B]``.
    rewards, discounts, valid
        Of the transitions, as for `vtrace`, ``[T, B]``.
    rho_bar, c_bar, pg_rho_bar, trace_decay
        As for `vtrace`.
    value_cost, entropy_cost
        Weights of the value loss and of the entropy bonus.
    splits
        Where an action has K independent parts: how many of the A logits belong to each of them.
    finite
        int32 scalar, set to 0 when the loss or a gradient is not finite and else left as it is.

    Returns
    -------
    VTraceLoss
        A batch without a valid transition has loss zero.

    Raises
    ------
    SpecError
        When an argument has another shape, dtype or device than stated here, or is not contiguous, or
        (CPU) an action is out of range.

    Notes
    -----
    On CPU, float64 in place of every float32 gives float64 results, to check gradients with.

    Examples
    --------
    >>> logits = torch.zeros(2, 1, 2, requires_grad=True)
    >>> one = torch.ones(1, 1)
    >>> loss = vtrace_loss(logits, torch.zeros(2, 1), torch.tensor([[1]]), one * 0.5, one, one, rho_bar=9,
    ...                    c_bar=9, pg_rho_bar=0.1, trace_decay=1, value_cost=0, entropy_cost=0)
    >>> loss.total.backward()
    >>> [round(x, 4) for x in logits.grad[0, 0].tolist()]
    [0.05, -0.05]
    """
    checks.check_rank("logits", logits, 3, "[T + 1, B, A]")
    (indices, batch, width), device, real = logits.shape, logits.device, values.dtype
    checks.check_floating("values", values, device)
    dtype = torch.bfloat16 if logits.dtype is torch.bfloat16 and real is torch.float32 else real
    checks.check_array("logits", logits, (indices, batch, width), dtype, device, "[T + 1, B, A]")
    checks.check_array("values", values, (indices, batch), real, device, "[T + 1, B] as logits")
    if indices < 2:
        raise SpecError(f"logits is {checks.describe(logits)}: expected at least 2 indices, one transition")
    shape, axes = (indices - 1, batch), "[T, B] with logits' T, B"
    parts: tuple[int, ...] = ()
    if splits is not None:
        shape_of_actions: tuple[int, ...] = (*shape, len(splits))
        parts = tuple(splits)
        if sum(parts) != width or min(parts, default=0) < 1:
            raise SpecError(
                f"splits is {list(parts)}: expected positive numbers with the sum {width}, A of logits"
            )
    else:
        shape_of_actions, parts = shape, (width,)
    checks.check_array("actions", actions, shape_of_actions, torch.int64, device, axes)
    checks.check_array("behaviour_log_probs", behaviour_log_probs, shape, real, device, axes)
    checks.check_array("rewards", rewards, shape, real, device, axes)
    checks.check_array("discounts", discounts, shape, real, device, axes)
    if valid is not None:
        checks.check_array("valid", valid, shape, torch.bool, device, axes)
    if finite is not None:
        checks.check_array("finite", finite, (), torch.int32, device, "a scalar")
    inputs = (
        logits,
        values,
        actions,
        constant(behaviour_log_probs),
        rewards,
        discounts,
        valid,
        parts,
        rho_bar,
        c_bar,
        pg_rho_bar,
        trace_decay,
        value_cost,
        entropy_cost,
    )
    return VTraceLoss(*_loss(inputs, finite))


@register("vtrace_loss", "torch")
def _loss_torch(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor | None,
    splits: Sequence[int],
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    value_cost: float,
    entropy_cost: float,
    total: Tensor,
    terms: Tensor,
    d_logits: Tensor,
    d_values: Tensor,
    finite: Tensor | None,
) -> None:
    shape, one = rewards.shape, torch.ones_like(rewards)
    mask = one if valid is None else valid.to(values.dtype)
    count = mask.sum().clamp(min=1.0)

    def mean(x: Tensor) -> Tensor:
        return x.masked_fill(mask == 0, 0.0).sum() / count

    log_policy = [
        torch.log_softmax(part, dim=-1)
        for part in torch.split(logits[:-1].to(values.dtype), list(splits), dim=-1)
    ]
    chosen = torch.split(actions.reshape(*shape, len(splits)), 1, dim=-1)
    log_prob = sum(
        (log_pi.gather(-1, a).squeeze(-1) for log_pi, a in zip(log_policy, chosen, strict=True)), 0 * one
    )
    log_rhos = log_prob - behaviour_log_probs
    vs, advantages = torch.empty_like(rewards), torch.empty_like(rewards)
    clips = (rho_bar, c_bar, pg_rho_bar, trace_decay)
    twins("vtrace")[PORTABLE](log_rhos, rewards, discounts, values, valid, *clips, vs, advantages)
    error = vs - values[:-1]
    d_values.zero_()
    d_values[:-1] = (-value_cost * error / count).masked_fill(mask == 0, 0.0)
    d_logits.zero_()
    entropy, offset = torch.zeros_like(one), 0
    for log_pi, a, width in zip(log_policy, chosen, splits, strict=True):
        pi = log_pi.exp()
        log_pi = log_pi.masked_fill(pi == 0.0, 0.0)  # impossible actions have no part in the entropy
        entropy_part = -(pi * log_pi).sum(-1, keepdim=True)
        slope = pi * (advantages.unsqueeze(-1) + entropy_cost * (log_pi + entropy_part))
        slope.scatter_add_(-1, a, -advantages.unsqueeze(-1))
        slope = (slope / count).masked_fill((mask == 0).unsqueeze(-1), 0.0)
        d_logits[:-1, :, offset : offset + width] = slope
        entropy = entropy + entropy_part.squeeze(-1)
        offset += width
    ratios = log_rhos.exp()
    policy, value, mean_entropy = mean(-log_prob * advantages), mean(0.5 * error.square()), mean(entropy)
    spread = mean((vs - mean(vs)).square())
    residual = mean((error - mean(error)).square())
    total.copy_(policy + value_cost * value - entropy_cost * mean_entropy)
    reported = (
        total,
        policy,
        value,
        mean_entropy,
        mean(error.abs()),
        1.0 - residual / (spread + 1e-8),
        mean((ratios > rho_bar).to(values.dtype)),
        mean((ratios > c_bar).to(values.dtype)),
    )
    torch.stack(reported, out=terms)
    if finite is not None:
        finite.mul_(total.isfinite())


@register("vtrace_loss", "cpu")
def _loss_cpu(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor | None,
    splits: Sequence[int],
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    value_cost: float,
    entropy_cost: float,
    total: Tensor,
    terms: Tensor,
    d_logits: Tensor,
    d_values: Tensor,
    finite: Tensor | None,
) -> None:
    if logits.dtype is torch.bfloat16:
        logits, d_logits = logits.view(torch.uint16), d_logits.view(torch.uint16)
    settings = (rho_bar, c_bar, pg_rho_bar, trace_decay, value_cost, entropy_cost)
    reported = terms.numpy()
    outside = loss_and_gradients(
        logits.numpy(),
        values.numpy(),
        actions.numpy().reshape(*rewards.shape, len(splits)),
        behaviour_log_probs.numpy(),
        rewards.numpy(),
        discounts.numpy(),
        None if valid is None else valid.numpy(),
        np.array(splits, np.int64),
        np.array(settings, np.float64 if values.dtype is torch.float64 else np.float32),
        reported,
        d_logits.numpy(),
        d_values.numpy(),
    )
    if outside >= 0:
        place = [int(i) for i in np.unravel_index(outside, tuple(actions.shape))]
        raise SpecError(
            f"actions{place} is {int(actions.flatten()[outside])}: expected 0 <= actions{place} < "
            f"{splits[outside % len(splits)]}, its number of logits"
        )
    total.fill_(reported[0])
    if finite is not None and not math.isfinite(reported[0]):
        finite.zero_()

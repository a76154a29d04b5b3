"""The R2D2 loss: n-step double Q-learning on rescaled values, over sequences from a replay.

Kapturowski et al. 2019 (R2D2) and Pohlen et al. 2018, arXiv 1805.11593 (rescaling). Index t holds the
reward and the flags of the transition into t; transition t leads from index t to t + 1 and is one unless
index t + 1 begins an episode. With ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x``::

    q*_j = h^-1( Q_target(o_j, argmax_a Q_online(o_j, a)) )
    y_t  = sum_{i<m} discount^i r_{t+1+i} + discount^m q*_{t+m}
    td_t = h(y_t) - Q_online(o_t, a_t)

The window of m transitions ends after n of them, at a terminated index (where q* counts as 0; both flags
at once: it terminates), at a truncated one, before a transition that is none, and with the sequence. A
sequence's loss is ``0.5 sum_t td_t^2`` over the valid t from burn_in on, the loss the mean over sequences
of weight times that. A sequence's priority is ``eta max_t |td_t| + (1 - eta) mean_t |td_t|``, at least
1e-6.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.fused_loss import define_loss
from seedflow.kernels.r2d2_loss_cpu import loss_and_gradient
from seedflow.kernels.registry import constant, register

R2D2_LOSS_TERMS = ("total", "td_error", "value", "target")
"""What `R2D2Loss.terms` holds: the loss, then means over the valid t of |td_t|, of the Q-value of the
action taken and of its target h(y_t)."""

MIN_PRIORITY = 1e-6


class R2D2Loss(NamedTuple):
    """The loss, a scalar that can be differentiated, and constants.

    Attributes
    ----------
    total
        The loss.
    terms
        `R2D2_LOSS_TERMS`, ``[4]``.
    priorities
        Of the sequences, ``[B]``.
    td_errors
        ``[L, B]``; zero where t is not valid, in the burn-in and at the last index.
    """

    total: Tensor
    terms: Tensor
    priorities: Tensor
    td_errors: Tensor


def _allocate(q_online: Tensor, *_: object) -> tuple[Tensor, ...]:
    indices, batch = q_online.shape[:2]
    terms, priorities = q_online.new_empty(len(R2D2_LOSS_TERMS)), q_online.new_empty(batch)
    td_errors = q_online.new_empty((indices, batch))
    return q_online.new_empty(()), terms, priorities, td_errors, torch.empty_like(q_online)


_loss = define_loss(
    "r2d2_loss",
    "Tensor q_online, Tensor q_target, Tensor actions, Tensor rewards, Tensor terminated, Tensor truncated, "
    "Tensor first, Tensor weights, int burn_in, int n_step, float discount, float rescale_epsilon, float eta",
    ("total", "terms", "priorities", "td_errors", "d_q_online"),
    _allocate,
    differentiable=1,
)


def r2d2_loss(
    q_online: Tensor,
    q_target: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    first: Tensor,
    weights: Tensor,
    *,
    burn_in: int,
    n_step: int,
    discount: float,
    rescale_epsilon: float,
    eta: float,
    finite: Tensor | None = None,
) -> R2D2Loss:
    """Compute the R2D2 loss and keep its gradient with respect to the online network's Q-values.

    Parameters
    ----------
    q_online, q_target
        Q-values of both networks at all indices, float32 ``[L, B, A]``; those before `burn_in` are not
        used. For priorities from acting time, where only Q(o_t, a_t) and max_a Q(o_t, a) are known, give
        these two as ``[L, B, 2]`` for both networks, with actions 0.
    actions
        int64 ``[L, B]``.
    rewards
        Of the transition into each index, float32 ``[L, B]``.
    terminated, truncated, first
        Flags of each index, bool ``[L, B]``.
    weights
        Importance weights of the sequences, float32 ``[B]``.
    burn_in
        The first index that is trained.
    n_step
        Rewards that are summed before the Q-value of the index reached, at least 1.
    discount
        Per transition.
    rescale_epsilon
        Epsilon of h.
    eta
        Share of the largest error in the priority.
    finite
        int32 scalar, set to 0 when the loss is not finite and else left as it is.

    Returns
    -------
    R2D2Loss
        A sequence without a valid t has loss 0 and the smallest priority.

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
    >>> q = torch.zeros(2, 1, 2, requires_grad=True)
    >>> zero, no = torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    >>> loss = r2d2_loss(q, q.detach(), zero.long(), zero + 3, no, no, no, torch.ones(1), burn_in=0,
    ...                  n_step=1, discount=0.5, rescale_epsilon=0.0, eta=0.9)
    >>> loss.td_errors.tolist(), loss.priorities.tolist(), loss.total.item()
    ([[1.0], [0.0]], [1.0], 0.5)
    """
    checks.check_rank("q_online", q_online, 3, "[L, B, A]")
    (indices, batch, _), device, real = q_online.shape, q_online.device, q_online.dtype
    checks.check_floating("q_online", q_online, device)
    checks.check_array("q_online", q_online, q_online.shape, real, device, "[L, B, A]")
    checks.check_array("q_target", q_target, q_online.shape, real, device, "[L, B, A] as q_online")
    shape, axes = (indices, batch), "[L, B] with q_online's L, B"
    checks.check_array("actions", actions, shape, torch.int64, device, axes)
    checks.check_array("rewards", rewards, shape, real, device, axes)
    checks.check_array("terminated", terminated, shape, torch.bool, device, axes)
    checks.check_array("truncated", truncated, shape, torch.bool, device, axes)
    checks.check_array("first", first, shape, torch.bool, device, axes)
    checks.check_array("weights", weights, (batch,), real, device, "[B] with q_online's B")
    if not 0 <= burn_in < indices - 1:
        raise SpecError(
            f"burn_in is {burn_in}: expected 0 <= burn_in < {indices - 1}, so that at least one of the "
            f"{indices} indices is trained and one more bootstraps"
        )
    if n_step < 1:
        raise SpecError(f"n_step is {n_step}: expected at least 1 step")
    if finite is not None:
        checks.check_array("finite", finite, (), torch.int32, device, "a scalar")
    inputs = (
        q_online,
        constant(q_target),
        actions,
        rewards,
        terminated,
        truncated,
        first,
        weights,
        burn_in,
        n_step,
        discount,
        rescale_epsilon,
        eta,
    )
    return R2D2Loss(*_loss(inputs, finite))


def rescale(x: Tensor, epsilon: float) -> Tensor:
    """Compute h, the rescaling of values, in a form that is exact to rounding also near zero."""
    size = x.abs()
    return x.sign() * size / ((size + 1.0).sqrt() + 1.0) + epsilon * x


def inverse_rescale(x: Tensor, epsilon: float) -> Tensor:
    """Compute the inverse of h; where the closed form of the paper subtracts, this one does not."""
    size, c = x.abs(), 1.0 + 2.0 * epsilon
    w = 2.0 * size / ((c * c + 4.0 * epsilon * size).sqrt() + c)
    return x.sign() * w * (w + 2.0)


@register("r2d2_loss", "torch")
def _loss_torch(
    q_online: Tensor,
    q_target: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    first: Tensor,
    weights: Tensor,
    burn_in: int,
    n_step: int,
    discount: float,
    rescale_epsilon: float,
    eta: float,
    total: Tensor,
    terms: Tensor,
    priorities: Tensor,
    td_errors: Tensor,
    d_q_online: Tensor,
    finite: Tensor | None,
) -> None:
    batch, valid = q_online.shape[1], ~first[burn_in + 1 :]
    greedy = q_online[burn_in:].argmax(dim=-1, keepdim=True)
    best = inverse_rescale(q_target[burn_in:].gather(-1, greedy).squeeze(-1), rescale_epsilon)
    following = best  # the return over no transition, then over one, two, ... n
    for _ in range(min(n_step, len(valid))):
        after = torch.where(truncated[burn_in + 1 :], best[1:], following[1:])
        step = rewards[burn_in + 1 :] + discount * after.masked_fill(terminated[burn_in + 1 :], 0.0)
        following = torch.cat([torch.where(valid, step, best[:-1]), best[-1:]])
    taken = actions[burn_in:-1].unsqueeze(-1)
    target, value = (
        rescale(following[:-1], rescale_epsilon),
        q_online[burn_in:-1].gather(-1, taken).squeeze(-1),
    )
    errors = (target - value).masked_fill(~valid, 0.0)
    td_errors.zero_()
    td_errors[burn_in:-1] = errors
    size, counts = errors.abs(), valid.sum(dim=0)
    mean = size.sum(dim=0) / counts.clamp(min=1)
    torch.clamp(eta * size.amax(dim=0) + (1.0 - eta) * mean, min=MIN_PRIORITY, out=priorities)
    total.copy_((weights * 0.5 * errors.square().sum(dim=0)).sum() / max(batch, 1))
    reported = [x.masked_fill(~valid, 0.0).sum() / counts.sum().clamp(min=1) for x in (size, value, target)]
    torch.stack([total, *reported], out=terms)
    d_q_online.zero_()
    d_q_online[burn_in:-1].scatter_(-1, taken, (-weights * errors / max(batch, 1)).unsqueeze(-1))
    if finite is not None:
        finite.mul_(total.isfinite())


@register("r2d2_loss", "cpu")
def _loss_cpu(
    q_online: Tensor,
    q_target: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    first: Tensor,
    weights: Tensor,
    burn_in: int,
    n_step: int,
    discount: float,
    rescale_epsilon: float,
    eta: float,
    total: Tensor,
    terms: Tensor,
    priorities: Tensor,
    td_errors: Tensor,
    d_q_online: Tensor,
    finite: Tensor | None,
) -> None:
    real = np.float64 if q_online.dtype is torch.float64 else np.float32
    reported = terms.numpy()
    t, b = loss_and_gradient(
        q_online.numpy(),
        q_target.numpy(),
        actions.numpy(),
        rewards.numpy(),
        terminated.numpy(),
        truncated.numpy(),
        first.numpy(),
        weights.numpy(),
        burn_in,
        n_step,
        np.array((discount, rescale_epsilon, eta, MIN_PRIORITY), real),
        reported,
        priorities.numpy(),
        td_errors.numpy(),
        d_q_online.numpy(),
    )
    if t >= 0:
        place = f"actions[{t}, {b}]"
        raise SpecError(f"{place} is {int(actions[t, b])}: expected 0 <= {place} < {q_online.shape[2]}")
    total.fill_(reported[0])
    if finite is not None and not math.isfinite(reported[0]):
        finite.zero_()

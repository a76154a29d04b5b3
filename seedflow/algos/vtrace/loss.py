"""The V-trace loss on a batch of unrolls.

Index t of an unroll holds the reward and flags of the transition into t; transition t leads from index t
to t + 1. The pair (an episode's last index, the next one's first) is no transition: it enters neither a
loss term nor a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seedflow import kernels
from seedflow.config import VTraceConfig


@dataclass(frozen=True)
class VTraceTargets:
    """What of a batch the loss needs, each ``[T, B]``.

    Attributes
    ----------
    rewards
        Of transition t, clipped and scaled as the config says.
    discounts
        0 where the transition terminates or is none.
    valid
        Whether it is a transition at all.
    actions, behaviour_log_probs
        Of the action that started it.
    """

    rewards: Tensor
    discounts: Tensor
    valid: Tensor
    actions: Tensor
    behaviour_log_probs: Tensor

    @classmethod
    def from_unrolls(cls, fields: dict[str, Tensor], config: VTraceConfig) -> VTraceTargets:
        """Read the targets from the fields ``[T+1, B]`` of a batch."""
        rewards = fields["reward"][1:]
        if config.reward_clip is not None:
            rewards = rewards.clamp(-config.reward_clip, config.reward_clip)
        if config.reward_scale != 1.0:
            rewards = rewards * config.reward_scale
        valid = ~fields["first"][1:]
        discounts = config.discount * (valid & ~fields["terminated"][1:]).to(torch.float32)
        return cls(rewards, discounts, valid, fields["action"][:-1], fields["behaviour_log_prob"][:-1])


def vtrace_loss(
    logits: Tensor,
    values: Tensor,
    targets: VTraceTargets,
    config: VTraceConfig,
    entropy_cost: float,
    finite: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Policy, value and entropy terms.

    Parameters
    ----------
    logits
        Of the target policy, ``[T+1, B, A]``.
    values
        ``[T+1, B]``.
    targets
        Of the same batch.
    config
        The `algo` section.
    entropy_cost
        Weight of the entropy bonus.
    finite
        int32 scalar, set to 0 when the loss is not finite.

    Returns
    -------
    loss, diagnostics
        Scalars.

    Notes
    -----
    Each term is a *mean* over valid transitions, where IMPALA took sums: learning rate, RMSProp's
    epsilon and gradient clipping do not carry over from there unchanged.
    """
    loss, terms = kernels.vtrace_loss(
        logits,
        values,
        targets.actions,
        targets.behaviour_log_probs,
        targets.rewards,
        targets.discounts,
        targets.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.pg_rho_bar,
        trace_decay=config.trace_decay,
        value_cost=config.value_cost,
        entropy_cost=entropy_cost,
        finite=finite,
    )
    return loss, {
        f"loss/{name}": term for name, term in zip(kernels.VTRACE_LOSS_TERMS, terms.unbind(), strict=True)
    }

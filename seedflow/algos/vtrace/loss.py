"""The V-trace loss on a batch of unrolls.

Index t of an unroll holds the reward and flags of the transition into t; transition t leads from index t
to t + 1. The pair (an episode's last index, the next one's first) is no transition: it enters neither a
loss term nor a trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seedflow.config import VTraceConfig
from seedflow.kernels import vtrace


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
    logits: Tensor, values: Tensor, targets: VTraceTargets, config: VTraceConfig, entropy_cost: float
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

    Returns
    -------
    loss, diagnostics
        Scalars.

    Notes
    -----
    Each term is a *mean* over valid transitions, where IMPALA took sums: learning rate, RMSProp's
    epsilon and gradient clipping do not carry over from there unchanged.
    """
    log_policy = torch.log_softmax(logits[:-1], dim=-1)
    log_prob = log_policy.gather(-1, targets.actions.unsqueeze(-1)).squeeze(-1)
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    mask = targets.valid.to(values.dtype)
    count = mask.sum().clamp(min=1.0)

    def mean(x: Tensor) -> Tensor:
        return (x * mask).sum() / count

    log_rhos = (log_prob - targets.behaviour_log_probs).detach()
    returns = vtrace(
        log_rhos,
        targets.rewards,
        targets.discounts,
        values.detach(),
        targets.valid,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.pg_rho_bar,
        trace_decay=config.trace_decay,
    )
    policy_loss = mean(-log_prob * returns.advantages)
    error = returns.vs - values[:-1]
    value_loss = mean(0.5 * error.square())
    mean_entropy = mean(entropy)
    loss = policy_loss + config.value_cost * value_loss - entropy_cost * mean_entropy
    with torch.no_grad():
        ratios = log_rhos.exp()
        centre = mean(returns.vs)
        spread = mean((returns.vs - centre).square())
        residual = mean((error - mean(error)).square())
        diagnostics = {
            "loss/total": loss.detach(),
            "loss/policy": policy_loss.detach(),
            "loss/value": value_loss.detach(),
            "loss/entropy": mean_entropy.detach(),
            "loss/value_error": mean(error.abs()),
            "loss/explained_variance": 1.0 - residual / (spread + 1e-8),
            "loss/rho_clipped": mean((ratios > config.rho_bar).to(mask.dtype)),
            "loss/c_clipped": mean((ratios > config.c_bar).to(mask.dtype)),
        }
    return loss, diagnostics

"""The R2D2 loss on a batch of sequences: burn-in, then double Q-learning with the fused kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seedflow import kernels
from seedflow.config import R2D2Config
from seedflow.kernels import R2D2_LOSS_TERMS, R2D2Loss
from seedflow.networks.dueling import DuelingQ
from seedflow.networks.trunk import NetworkInput
from seedflow.rollout.storage import UnrollBatch


def q_values(network: DuelingQ, batch: UnrollBatch, burn_in: int) -> Tensor:
    """Q-values ``[L - burn_in, B, A]`` of the trained indices.

    The core state of the first of them comes from a run over the burn-in, from the stored state; no gradient
    flows there.
    """
    state = batch.state
    if burn_in:
        with torch.no_grad():
            before = _inputs(network, batch, slice(0, burn_in))
            _, state = network.features(before, state)
            state = network.remember(state, batch.fields["action"][burn_in - 1])
    q, _ = network(_inputs(network, batch, slice(burn_in, None)), state)
    return q  # type: ignore[no-any-return]


def r2d2_loss(
    q_online: Tensor,
    q_target: Tensor,
    batch: UnrollBatch,
    weights: Tensor,
    burn_in: int,
    config: R2D2Config,
    finite: Tensor,
) -> tuple[R2D2Loss, dict[str, Tensor]]:
    """Compute the loss, see `seedflow.kernels.r2d2_loss`, and what to report of it.

    Parameters
    ----------
    q_online, q_target
        Of the trained indices, as `q_values` gives them.
    batch, weights
        Sequences and their importance weights.
    burn_in
        Indices of `batch` that are not trained.
    config
        The `algo` section.
    finite
        int32 scalar, set to 0 where the loss is not finite.
    """
    trained = {name: batch.fields[name][burn_in:].contiguous() for name in FIELDS}
    loss = kernels.r2d2_loss(
        q_online.contiguous(),
        q_target.contiguous(),
        trained["action"],
        trained["reward"],
        trained["terminated"],
        trained["truncated"],
        trained["first"],
        weights,
        burn_in=0,
        n_step=config.n_step,
        discount=config.discount,
        rescale_epsilon=config.rescale_epsilon,
        eta=config.priority_eta,
        finite=finite,
    )
    return loss, {f"loss/{name}": term for name, term in zip(R2D2_LOSS_TERMS, loss.terms, strict=True)}


FIELDS: Sequence[str] = ("action", "reward", "terminated", "truncated", "first")
"""What of a batch the loss needs."""


def _inputs(network: DuelingQ, batch: UnrollBatch, part: slice) -> NetworkInput:
    fields = batch.fields
    return NetworkInput(
        tuple(fields[leaf.name][part] for leaf in network.leaves),
        fields["reward"][part],
        fields["first"][part],
        fields["action"][part],
    )

"""The categorical action distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from seedflow import kernels


def sample_categorical(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample actions.

    Parameters
    ----------
    logits
        Unnormalized log-probabilities ``[..., A]``.
    generator
        Source of randomness on the logits' device.

    Returns
    -------
    actions, log_probs
        int64 and float32, both ``[...]``.
    """
    action, log_prob, _ = kernels.sample_categorical(logits.contiguous(), generator)
    return action, log_prob

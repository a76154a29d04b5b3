"""The categorical action distribution."""

from __future__ import annotations

import torch
from torch import Tensor


def sample_categorical(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample actions by an exponential race.

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

    Notes
    -----
    ``argmin_a E_a / p_a`` with ``E_a ~ Exp(1)`` is distributed as p: the minimum of exponential clocks.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    race = torch.empty_like(logits).exponential_(generator=generator).log_()
    actions = (log_probs - race).argmax(dim=-1)
    return actions, log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

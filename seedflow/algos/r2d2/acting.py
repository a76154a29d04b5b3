"""How R2D2 acts: greedy in Q, each training environment exploring by its own rung of a ladder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from seedflow.algos.base import Acting, ActingInput, ActingOutput
from seedflow.networks.cores import State
from seedflow.specs import ArraySpec

Q_TAKEN = ArraySpec("q_taken", (), np.dtype(np.float32))
"""Q-value of the action that was taken."""
Q_BEST = ArraySpec("q_best", (), np.dtype(np.float32))
"""The largest Q-value."""


class R2D2Acting(Acting):
    """Take the action with the largest Q-value, or with some probability a random one.

    Parameters
    ----------
    generator
        Source of randomness, on the network's device.
    ladder
        That probability for each training environment, by id.
    epsilon
        That probability in other environments, those of an evaluation.
    """

    record_specs = (Q_TAKEN, Q_BEST)

    def __init__(self, generator: torch.Generator, ladder: Sequence[float], epsilon: float) -> None:
        self._generator = generator
        # The last entry, which an index of -1 finds, is for environments that are not trained on.
        self._epsilons = torch.tensor([*ladder, epsilon], device=generator.device)

    @property
    def generator(self) -> torch.Generator:
        return self._generator

    def act(self, network: nn.Module, inputs: ActingInput, state: State) -> ActingOutput:
        output, after = network(inputs.for_network(), state)
        q = output[0]
        best, greedy = q.max(dim=-1)
        epsilon = self._epsilons[-1] if inputs.env_ids is None else self._epsilons[inputs.env_ids]
        n, device = len(greedy), q.device
        explores = torch.rand(n, generator=self._generator, device=device) < epsilon
        random = torch.randint(q.shape[-1], (n,), generator=self._generator, device=device)
        if inputs.greedy is not None:
            explores &= ~inputs.greedy
        action = torch.where(explores, random, greedy)
        taken = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return ActingOutput(
            action,
            {Q_TAKEN.name: taken, Q_BEST.name: best},
            network.remember(after, action),  # type: ignore[operator]
        )

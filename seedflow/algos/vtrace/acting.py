"""How V-trace acts: sampled from the policy; the log-probability of the action is recorded."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from seedflow.algos.base import Acting, ActingInput, ActingOutput
from seedflow.networks.cores import State
from seedflow.networks.distributions import sample_categorical
from seedflow.specs import ArraySpec


class VTraceActing(Acting):
    """Sample from the policy, or take its mode where acting is greedy."""

    record_specs = (ArraySpec("behaviour_log_prob", (), np.dtype(np.float32)),)

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    @property
    def generator(self) -> torch.Generator:
        return self._generator

    def act(self, network: nn.Module, inputs: ActingInput, state: State) -> ActingOutput:
        output, after = network(inputs.for_network(), state)
        logits = output.logits[0]
        action, log_prob = sample_categorical(logits, self._generator)
        if inputs.greedy is not None:
            action = torch.where(inputs.greedy, logits.argmax(dim=-1), action)
        return ActingOutput(
            action,
            {"behaviour_log_prob": log_prob},
            network.remember(after, action),  # type: ignore[operator]
        )

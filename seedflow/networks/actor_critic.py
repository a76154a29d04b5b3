"""The actor-critic network: a policy and a value head over one trunk."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from seedflow.config import NetworkConfig
from seedflow.networks.cores import State
from seedflow.networks.trunk import NetworkInput, Trunk
from seedflow.specs import EnvSpec


@dataclass(frozen=True)
class NetworkOutput:
    """Policy logits ``[T, B, num_actions]`` and values ``[T, B]``."""

    logits: Tensor
    value: Tensor


class ActorCritic(Trunk):
    """Policy and value over one shared trunk.

    Parameters
    ----------
    spec
        The environment's spec.
    config
        The `network` section.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig) -> None:
        super().__init__(spec, config)
        self.policy_head = nn.Linear(self.size, spec.num_actions)
        self.value_head = nn.Linear(self.size, 1)
        for head, gain in ((self.policy_head, 0.01), (self.value_head, 1.0)):
            nn.init.orthogonal_(head.weight, gain)
            nn.init.zeros_(head.bias)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[NetworkOutput, State]:
        """Run over ``[T, B]`` indices; the state is as of `Trunk.features`."""
        x, after = self.features(inputs, state)
        # For small batches to call a module takes longer than what it computes.
        logits, value = (
            nn.functional.linear(x, head.weight, head.bias) for head in (self.policy_head, self.value_head)
        )
        return NetworkOutput(logits, value.squeeze(-1)), after

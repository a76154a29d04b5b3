"""The Q-network: dueling heads over one trunk (Wang et al. 2016, arXiv 1511.06581)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from seedflow.config import NetworkConfig
from seedflow.networks.cores import State
from seedflow.networks.trunk import NetworkInput, Trunk
from seedflow.specs import EnvSpec


class DuelingQ(Trunk):
    """Q-values as a value plus advantages: ``Q(a) = V + A(a) - mean_a A(a)``.

    Each head is one hidden layer with a ReLU and an output layer. Advantages begin near zero, so that no
    action is preferred before anything was learned.

    Parameters
    ----------
    spec
        The environment's spec.
    config
        The `network` section.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig) -> None:
        super().__init__(spec, config)
        self.value_head = _head(self.size, config.head_size, 1, gain=1.0)
        self.advantage_head = _head(self.size, config.head_size, spec.num_actions, gain=0.01)

    def forward(self, inputs: NetworkInput, state: State) -> tuple[Tensor, State]:
        """Q-values ``[T, B, num_actions]``; the state is as of `Trunk.features`."""
        x, after = self.features(inputs, state)
        advantage = self.advantage_head(x)
        return self.value_head(x) + advantage - advantage.mean(dim=-1, keepdim=True), after


def _head(inputs: int, hidden: int, outputs: int, gain: float) -> nn.Sequential:
    layers = (nn.Linear(inputs, hidden), nn.Linear(hidden, outputs))
    for layer, scale in zip(layers, (math.sqrt(2), gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1])

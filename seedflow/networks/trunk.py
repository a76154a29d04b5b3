"""What all networks have below their heads: frame stack, encoder, optional inputs and core.

Time comes first everywhere: ``[T, B, ...]``; acting is the case T = 1. The core state is one flat tuple
of tensors ``[B, ...]`` described by `Trunk.state_specs`; an all-zero state is the initial one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seedflow.config import NetworkConfig
from seedflow.networks.cores import FrameStack, Lstm, PreviousAction, State
from seedflow.networks.encoders import ConvolutionalEncoder, MlpEncoder
from seedflow.specs import ArraySpec, EnvSpec


@dataclass(frozen=True)
class NetworkInput:
    """What a network sees, each ``[T, B, ...]``.

    Attributes
    ----------
    observation
        Leaves, in the order of `EnvSpec.observation`.
    reward
        Raw reward of the transition into each index, float32.
    first
        Whether the index begins an episode, bool.
    action
        Actions taken at the indices, int64; None while acting (T = 1).
    """

    observation: tuple[Tensor, ...]
    reward: Tensor
    first: Tensor
    action: Tensor | None = None


class Trunk(nn.Module):
    """From observations to features.

    Parameters
    ----------
    spec
        The environment's spec.
    config
        The `network` section.

    Attributes
    ----------
    size
        Number of features.
    """

    def __init__(self, spec: EnvSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.leaves = spec.observation
        depth = config.frame_stack.depth
        self.stacks = [FrameStack(leaf, depth, config.frame_stack.padding) for leaf in spec.observation]
        self.encoder: MlpEncoder | ConvolutionalEncoder
        if config.encoder == "mlp":
            self.encoder = MlpEncoder(spec.observation, depth, config.hidden, config.activation)
        else:
            self.encoder = ConvolutionalEncoder(config.encoder, spec.observation, depth, config.features)
        size = self.encoder.size
        self.previous_action = None
        if "previous_action" in config.inputs:
            self.previous_action = PreviousAction(spec.num_actions)
            size += spec.num_actions
        self.previous_reward = "previous_reward" in config.inputs
        size += self.previous_reward
        self.core = None
        if config.core == "lstm":
            self.core = Lstm(size, config.core_size)
            size = config.core_size
        self.size = size
        self._bfloat16, self._compiles = config.autocast == "bfloat16", config.compile
        if self._compiles:
            self.compile()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy is compiled for itself: it has other parameters."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._compiles:
            self.compile()

    @property
    def state_specs(self) -> tuple[ArraySpec, ...]:
        """Names, shapes and dtypes of the core state's tensors, without the batch axis."""
        specs = [spec for stack in self.stacks for spec in stack.state_specs]
        for core in (self.previous_action, self.core):
            specs += core.state_specs if core is not None else ()
        return tuple(specs)

    def features(self, inputs: NetworkInput, state: State) -> tuple[Tensor, State]:
        """Run over ``[T, B]`` indices from the state fed at the first one.

        Returns
        -------
        Tensor, State
            ``[T, B, size]``, and the state after the last index. `remember` completes it with the action
            chosen there. Both are float32 wherever they are floating, also with ``autocast``.
        """
        if not self._bfloat16:
            return self._features(inputs, state)
        with torch.autocast(inputs.first.device.type, torch.bfloat16):
            x, after = self._features(inputs, state)
        return x.float(), after

    def _features(self, inputs: NetworkInput, state: State) -> tuple[Tensor, State]:
        first = inputs.first
        rest = list(state)
        after: list[Tensor] = []
        stacked = []
        for leaf, stack in zip(inputs.observation, self.stacks, strict=True):
            own = tuple(rest.pop(0) for _ in stack.state_specs)
            frames, own = stack(leaf, first, own)
            stacked.append(frames.flatten(0, 1))
            after += own
        features = self.encoder(stacked).unflatten(0, first.shape)
        parts = [features]
        if self.previous_action is not None:
            own = (rest.pop(0),)
            parts.append(self.previous_action(inputs.action, first, own))
            after += own
        if self.previous_reward:  # clipped as in IMPALA
            parts.append(inputs.reward.masked_fill(first, 0.0).clamp(-1.0, 1.0).unsqueeze(-1))
        x = features if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self.core is not None:
            x, own = self.core(x, first, tuple(rest))
            after += own
        return x, tuple(after)

    def remember(self, state: State, action: Tensor) -> State:
        """The core state once ``action [B]`` was chosen."""
        if self.previous_action is None:
            return state
        place = [spec.name for spec in self.state_specs].index("previous_action")
        return (*state[:place], *self.previous_action.after(action), *state[place + 1 :])

"""Cores: everything in a network that remembers.

A core has a state, a tuple of tensors ``[B, ...]`` described by `state_specs`. An all-zero state is the
initial one, and a core sees the ``first`` flags, so that it starts anew within an unroll exactly as it
does when it is stepped: unrolling T steps equals stepping T times.

- `FrameStack`: the newest frames, newest first.
- `PreviousAction`: the last action, one-hot; all zeros at an episode's first step.
- `Lstm`: Hochreiter & Schmidhuber 1997; state reset where ``first`` is set.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from seedflow.specs import ArraySpec

State = tuple[Tensor, ...]


class FrameStack:
    """Stack the newest `depth` frames of one observation leaf, newest first.

    Parameters
    ----------
    leaf
        The leaf that is stacked; frames are kept in its dtype.
    depth
        Frames seen at once, at least 1.
    padding
        What stands before an episode's first frame: that frame again, or zeros.
    """

    def __init__(self, leaf: ArraySpec, depth: int, padding: Literal["repeat", "zero"]) -> None:
        self.depth = depth
        self.padding = padding
        older = (ArraySpec(f"frames/{leaf.name}", (depth - 1, *leaf.shape), leaf.dtype),)
        self.state_specs: tuple[ArraySpec, ...] = older if depth > 1 else ()

    def __call__(self, frames: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """Stack ``frames [T, B, *shape]`` into ``[T, B, depth, *shape]``."""
        if self.depth == 1:
            return frames.unsqueeze(2), ()
        steps, batch = first.shape
        older = self.depth - 1
        history = torch.cat([state[0].transpose(0, 1).flip(0), frames])  # [older + T, B, ...], by time
        time = torch.arange(steps, device=first.device).unsqueeze(1)
        begins = torch.where(first, time + older, 0).cummax(dim=0).values  # of the open episode, in history
        wanted = (time + older).unsqueeze(2) - torch.arange(self.depth, device=first.device)  # [T, 1, depth]
        begins = begins.unsqueeze(2)
        index = torch.maximum(wanted, begins)
        columns = torch.arange(batch, device=first.device).view(1, batch, 1)
        flat = (index * batch + columns).flatten()
        stacked = history.flatten(0, 1).index_select(0, flat)
        stacked = stacked.view(steps, batch, self.depth, *frames.shape[2:])
        if self.padding == "zero":
            before = (wanted < begins).view(steps, batch, self.depth, *[1] * (frames.ndim - 2))
            stacked = stacked.masked_fill(before, 0)
        return stacked, (stacked[-1, :, :older],)


class PreviousAction:
    """The action taken one step earlier, one-hot; zeros where ``first`` is set.

    The state holds ``action + 1``; 0 stands for "none yet".
    """

    def __init__(self, num_actions: int) -> None:
        self.num_actions = num_actions
        self.state_specs = (ArraySpec("previous_action", (), np.dtype(np.int64)),)

    def __call__(self, actions: Tensor | None, first: Tensor, state: State) -> Tensor:
        """One-hot ``[T, B, num_actions]``; `actions` ``[T, B]`` may be None where T is 1."""
        previous = state[0].unsqueeze(0)
        if actions is not None:
            previous = torch.cat([previous, actions[:-1] + 1])
        previous = previous.masked_fill(first, 0)
        return nn.functional.one_hot(previous, self.num_actions + 1)[..., 1:].float()

    @staticmethod
    def after(action: Tensor) -> State:
        """State once ``action [B]`` was chosen."""
        return (action + 1,)


class Lstm(nn.Module):
    """One LSTM layer whose state is zeroed where ``first`` is set."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.cell = nn.LSTMCell(inputs, size)
        spec = [ArraySpec(f"lstm/{part}", (size,), np.dtype(np.float32)) for part in ("hidden", "cell")]
        self.state_specs = tuple(spec)

    def forward(self, x: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over ``x [T, B, inputs]``; returns ``[T, B, size]`` and the state after T."""
        hidden, cell = state
        projected = nn.functional.linear(x, self.cell.weight_ih, self.cell.bias_ih)  # all T at once
        keep = (~first).unsqueeze(2).to(x.dtype)
        outputs = []
        for t in range(x.shape[0]):
            hidden, cell = hidden * keep[t], cell * keep[t]
            gates = torch.addmm(projected[t], hidden, self.cell.weight_hh.t()) + self.cell.bias_hh
            into, forget, new, out = gates.chunk(4, dim=1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs), (hidden, cell)

"""Weights on their way from training to inference."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from seedflow.networks.flat import FlatParameters


class PublishedWeights:
    """Three preallocated copies of the weights; the newest is published, one may be in use.

    Training writes into a copy that is neither the newest nor pinned and then names it the newest:
    weights never change under a forward pass, and neither side waits for the other.

    Parameters
    ----------
    network
        The trained network. Inference gets copies of it whose parameters are views of the buffers.
    parameters
        Its flat parameters: the first version.
    """

    COPIES = 3

    def __init__(self, network: nn.Module, parameters: FlatParameters, version: int = 0) -> None:
        flat = parameters.parameter.detach()
        self._buffers = flat.repeat(self.COPIES, 1)
        self._versions = torch.full((self.COPIES,), version, dtype=torch.int64)
        self._names = torch.tensor([0, -1])  # newest, pinned
        self._networks = []
        for buffer in self._buffers:
            with torch.no_grad():
                twin = copy.deepcopy(network)
            twin.requires_grad_(False)
            for parameter in twin.parameters():
                parameter.grad = None
            _rebind(twin, buffer)
            self._networks.append(twin)

    def publish(self, values: Tensor, version: int) -> None:
        """Copy ``values [n]`` into a copy that nobody reads and make it the newest."""
        newest, pinned = self._names.tolist()
        place = next(i for i in range(self.COPIES) if i not in (newest, pinned))
        self._buffers[place].copy_(values)
        self._versions[place] = version
        self._names[0] = place

    def pin(self) -> tuple[nn.Module, int]:
        """The newest network and its version, safe from changes until the next call."""
        while True:
            newest = int(self._names[0])
            self._names[1] = newest
            if int(self._names[0]) == newest:  # else training may not have seen the pin
                return self._networks[newest], int(self._versions[newest])


def _rebind(module: nn.Module, buffer: Tensor) -> None:
    offset = 0
    for parameter in module.parameters():
        end = offset + parameter.numel()
        parameter.data = buffer[offset:end].view(parameter.shape)
        offset = end

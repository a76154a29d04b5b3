"""Weights on their way from training to inference."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor, nn

from seedflow.learner.arena import Arena
from seedflow.learner.forward import ActingNetworks


class Weights(Protocol):
    """The way of weights from training to inference."""

    def publish(self, values: Tensor, version: int) -> None:
        """Make a copy of ``values [n]`` the newest weights; called by training."""

    def networks(self, network: nn.Module) -> ActingNetworks:
        """What inference acts with: copies of a network over the newest weights."""

    def close(self) -> None:
        """Release what it took; the loops have ended before."""


class PublishedWeights:
    """Three preallocated copies of the flat weights; the newest is published, one may be in use.

    Training writes into a copy that is neither the newest nor pinned and then names it the newest: weights
    never change under a forward pass, and neither side waits for the other's work. The two sides may be
    threads or processes.

    Parameters
    ----------
    arena
        Where the copies live.
    size
        Number of weights, float32.
    """

    COPIES = 3

    def __init__(self, arena: Arena, size: int) -> None:
        self.buffers = arena.zeros((self.COPIES, size), torch.float32)
        self._versions = arena.counters(self.COPIES)
        self._names = arena.counters(2)  # newest; pinned, counted from 1, or 0
        self._lock = arena.lock()

    def publish(self, values: Tensor, version: int) -> None:
        """Copy ``values [n]`` into a copy that nobody reads and make it the newest."""
        with self._lock:
            newest, pinned = int(self._names[0]), int(self._names[1]) - 1
        # Only this side changes the newest, and the other side pins nothing but the newest.
        place = next(i for i in range(self.COPIES) if i not in (newest, pinned))
        self.buffers[place].copy_(values)
        self._versions[place] = version
        with self._lock:
            self._names[0] = place

    def pin(self) -> tuple[int, int]:
        """The newest copy and its version; the copy is safe from changes until the next call."""
        with self._lock:
            newest = int(self._names[0])
            self._names[1] = newest + 1
        return newest, int(self._versions[newest])

    def networks(self, network: nn.Module) -> PinnedNetworks:
        """What inference acts with."""
        return PinnedNetworks(network, self)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


class PinnedNetworks:
    """The acting network over each copy of the published weights.

    Parameters
    ----------
    network
        The network; copies of it get parameters that are views of the published buffers.
    weights
        Where new versions come from.
    """

    def __init__(self, network: nn.Module, weights: PublishedWeights) -> None:
        self._weights = weights
        self._networks = []
        for buffer in weights.buffers:
            with torch.no_grad():
                twin = copy.deepcopy(network)
            bind_parameters(twin, buffer)
            self._networks.append(twin)

    def pin(self) -> tuple[nn.Module, int]:
        """The newest network and its version, safe from changes until the next call."""
        place, version = self._weights.pin()
        return self._networks[place], version


def bind_parameters(module: nn.Module, buffer: Tensor) -> None:
    """Make a module's parameters views of a flat buffer, without gradients."""
    module.requires_grad_(False)
    offset = 0
    for parameter in module.parameters():
        end = offset + parameter.numel()
        parameter.grad = None
        parameter.data = buffer[offset:end].view(parameter.shape)
        offset = end

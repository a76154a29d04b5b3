"""What depends on the device that a learner computes on, made in one place.

The loops are the same everywhere. `CpuBackend` gives them parts that do their work at once;
`seedflow.learner.cuda` gives parts that order it in streams of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from seedflow.algos import Acting
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.forward import ActingNetworks, DirectForward, Forward
from seedflow.learner.recording import Recorder
from seedflow.learner.streams import HostStream, LoopName, Stream
from seedflow.learner.weights import PublishedWeights, Weights
from seedflow.rollout import IndexRing, StateTable
from seedflow.rpc.slab import Slab

Report = Callable[[str], None]


class Backend(Protocol):
    """Makes what differs between devices.

    Attributes
    ----------
    device
        Where networks, states and unrolls are.
    """

    device: torch.device

    def stream(self, loop: LoopName) -> Stream:
        """The stream of a loop."""

    def ring(self, arena: Arena, capacity: int, source: LoopName, target: LoopName) -> IndexRing:
        """A ring from one loop to another."""

    def weights(self, arena: Arena, size: int) -> Weights:
        """The way of `size` weights from training to inference."""

    def forward(
        self,
        slab: Slab,
        config: Config,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: Recorder,
        report: Report,
    ) -> Forward:
        """What inference does with a batch; the parameters are those of `DirectForward`."""

    def close(self) -> None:
        """Release what the parts took; the loops have ended before."""


class CpuBackend:
    """For learners on a CPU."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._stream = HostStream()

    def stream(self, loop: LoopName) -> Stream:
        """See `Backend.stream`."""
        return self._stream

    def ring(self, arena: Arena, capacity: int, source: LoopName, target: LoopName) -> IndexRing:
        """See `Backend.ring`."""
        return arena.ring(capacity)

    def weights(self, arena: Arena, size: int) -> Weights:
        """See `Backend.weights`."""
        return PublishedWeights(arena, size)

    def forward(
        self,
        slab: Slab,
        config: Config,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: Recorder,
        report: Report,
    ) -> Forward:
        """See `Backend.forward`."""
        return DirectForward(
            slab, config.inference.max_batch, acting, networks, states, recorder, self.device
        )

    def close(self) -> None:
        """Nothing to release."""


def make_backend(device: torch.device) -> Backend:
    """The backend for a device."""
    if device.type == "cpu":
        return CpuBackend()
    from seedflow.learner.cuda.backend import CudaBackend
    from seedflow.learner.cuda.gpu import TorchGpu

    return CudaBackend(TorchGpu(device))

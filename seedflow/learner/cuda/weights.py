"""Weights on their way from training's stream to inference's."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn

from seedflow.learner.streams import Event, Stream
from seedflow.learner.weights import bind_parameters


class StagedWeights:
    """The newest weights in a staging buffer, from which inference copies them into its live parameters.

    The live parameters stay where they are, so that CUDA graphs that read them stay valid. Neither stream
    touches the staging buffer before the other one's last copy is done, and the host waits for none.

    Parameters
    ----------
    size
        Number of weights, float32.
    device
        Where they are.
    source, target
        Training's and inference's stream.

    Attributes
    ----------
    version
        Of what is in the staging buffer; -1 before anything was published.
    """

    def __init__(self, size: int, device: torch.device, source: Stream, target: Stream) -> None:
        self.version = -1
        self._staging = torch.zeros(size, dtype=torch.float32, device=device)
        self._source, self._target = source, target
        # Held while a copy and its event are submitted: the other side then finds both or neither.
        self._lock = threading.Lock()
        self._published: Event | None = None
        self._taken: Event | None = None

    def publish(self, values: Tensor, version: int) -> None:
        """Copy ``values [n]`` into the staging buffer, behind the last copy out of it."""
        values = values.detach()
        with self._lock:
            if self._taken is not None:
                self._source.wait(self._taken)
            self._source.submit(lambda: _copy(self._staging, values))
            self._published = self._source.record()
            self.version = version

    def take(self, live: Tensor) -> int:
        """Copy the newest weights into ``live [n]``, behind their publication; returns their version."""
        with self._lock:
            if self._published is None:
                raise RuntimeError("no weights were published before inference asked for some")
            self._target.wait(self._published)
            self._target.submit(lambda: _copy(live, self._staging))
            self._taken = self._target.record()
            return self.version

    def networks(self, network: nn.Module) -> LiveNetwork:
        """What inference acts with."""
        return LiveNetwork(network, self._staging, self)

    def close(self) -> None:
        """Nothing to release."""


class LiveNetwork:
    """The acting network, whose parameters change between two batches.

    Parameters
    ----------
    network
        The network; a copy of it gets the live parameters.
    like
        A buffer of the size and on the device that the live one shall have.
    weights
        Where new versions come from.
    """

    def __init__(self, network: nn.Module, like: Tensor, weights: StagedWeights) -> None:
        self._weights, self._version = weights, -1
        self._live = torch.zeros_like(like)
        with torch.no_grad():
            self._network = copy.deepcopy(network)
        bind_parameters(self._network, self._live)

    def pin(self) -> tuple[nn.Module, int]:
        """The network and the version of its weights, for what is submitted until the next call."""
        if self._weights.version != self._version:
            self._version = self._weights.take(self._live)
        return self._network, self._version


@torch.no_grad()
def _copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source, non_blocking=True)

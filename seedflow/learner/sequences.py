"""The prefetch loop of an algorithm with a replay: chunks go in, batches of sequences come out."""

from __future__ import annotations

import time

import numpy as np
import torch

from seedflow.learner.streams import Stream
from seedflow.metrics import Metrics
from seedflow.replay.arrival import Arrivals, InsertLoop
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import NotYet, Sample, SequenceBatch
from seedflow.rollout import IndexRing
from seedflow.rollout.ring import wait_any
from seedflow.rollout.storage import UnrollBatch

WAIT_INSERT = "replay/wait_insert_seconds"
WAIT_SAMPLE = "replay/wait_sample_seconds"


class ReplayBatch:
    """A preallocated batch: decoded on the host, trained on the learner's device.

    Parameters
    ----------
    spec
        Of the replay.
    size
        Sequences of a batch.
    device
        The learner's.

    Attributes
    ----------
    decoded
        What the replay decodes into.
    unrolls
        The same on the device, time first; on a CPU the same memory.
    weights
        Importance weights, float32 ``[B]`` on the device.
    generations
        int64 ``[B]``: which sequences they are.
    """

    def __init__(self, spec: ReplaySpec, size: int, device: torch.device) -> None:
        self.decoded = SequenceBatch(spec, size)
        hosts = [torch.from_numpy(array) for array in (*self.decoded.fields.values(), *self.decoded.state)]
        placed = hosts if device.type == "cpu" else [host.to(device) for host in hosts]
        self._copies = [] if device.type == "cpu" else list(zip(placed, hosts, strict=True))
        fields = dict(zip(self.decoded.fields, placed, strict=False))
        self.unrolls = UnrollBatch(
            {name: value.transpose(0, 1) for name, value in fields.items()}, tuple(placed[len(fields) :])
        )
        self.weights = torch.zeros(size, device=device)
        self.generations = np.zeros(size, np.int64)

    def take(self, sample: Sample) -> None:
        """Take over what was decoded."""
        for placed, host in self._copies:
            placed.copy_(host)
        self.weights.copy_(torch.from_numpy(sample.weights))
        self.generations[:] = sample.generations


class ReplayPrefetch:
    """Inserts chunks that inference has filled, and samples batches ahead of training.

    Both are done by one loop, so that one never waits for the other: it inserts while the limiter lets it,
    and samples while it may and there is an empty batch.

    Parameters
    ----------
    inserting
        Encodes and inserts.
    arrivals, replay
        Where chunks come from and go.
    batches, filled, empty
        The batches, and the rings of their indices to and from the training loop.
    metrics
        Where measurements go.
    stream
        Where batches go to the device.
    """

    def __init__(
        self,
        inserting: InsertLoop,
        arrivals: Arrivals,
        replay: Replay,
        batches: list[ReplayBatch],
        filled: IndexRing,
        empty: IndexRing,
        metrics: Metrics,
        stream: Stream,
    ) -> None:
        self._inserting, self._arrivals, self._replay = inserting, arrivals, replay
        self._batches, self._filled, self._empty = batches, filled, empty
        self._metrics, self._stream = metrics, stream
        self._index: int | None = None  # of a batch that is still to be sampled
        self._looked_at = time.monotonic()
        self._held_up = {WAIT_INSERT: False, WAIT_SAMPLE: False}
        for name in self._held_up:
            metrics.add(name, 0.0)

    def step(self) -> bool:
        """Insert some chunks and sample a batch, as far as possible; returns whether it did either."""
        inserted = self._inserting.step()
        sampled = self._sample()
        now = time.monotonic()
        for name, before in self._held_up.items():
            if before:
                self._metrics.add(name, now - self._looked_at)
        self._looked_at = now
        self._held_up = {WAIT_INSERT: self._inserting.held_up, WAIT_SAMPLE: self._index is not None}
        return inserted > 0 or sampled

    def wait(self, timeout: float) -> None:
        """Wait for chunks or an empty batch; everything else is this loop's own doing."""
        wait_any((self._arrivals.filled, self._empty), timeout)

    def _sample(self) -> bool:
        if self._index is None:
            taken = self._empty.take(1)
            if not taken:
                return False
            (self._index,) = taken
        batch = self._batches[self._index]
        sample = self._replay.sample(batch.decoded)
        if isinstance(sample, NotYet):
            return False
        self._stream.submit(lambda: batch.take(sample))
        self._filled.put([self._index])
        self._index = None
        return True

"""Where the inference loop writes what the environments do, index by index.

An algorithm that learns from each unroll once has unroll slots, one with a replay has chunk buffers. The loop
knows a `Recorder` only: how many it has free, the input half of an index before acting, the output half after
it, and what to give up when an environment is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.learner.staging import Staging
from seedflow.nested import Arrays, nest, part
from seedflow.replay.arrival import Arrivals
from seedflow.rollout import IndexRing, SlotPool, UnrollStorage
from seedflow.rollout.slots import Completion, Placement
from seedflow.rollout.storage import UnrollWriter

Rows = NDArray[np.int64]


class Recorder(ABC):
    """Writes experience; used by the inference loop alone, `idle` and `waiting` excepted."""

    @abstractmethod
    def attach(self, staging: Staging, outputs: Mapping[str, Tensor]) -> None:
        """Say where the loop keeps the inputs and the outputs of a batch, arrays ``[max_batch, ...]``."""

    @abstractmethod
    def take_back(self) -> int:
        """Take in what training has freed; returns how many slots or buffers are free."""

    @abstractmethod
    def needed(self, rows: Rows) -> int:
        """How many of them one more index of each of `rows` takes."""

    @abstractmethod
    def begin(self, rows: Rows, chosen: Rows, state: Sequence[Tensor]) -> None:
        """Write the input half of an index of each of `rows`.

        Parameters
        ----------
        rows
            Rows of the slab.
        chosen
            Their places in the batch, to which the arrays and `state` belong.
        state
            Core states ``[n, ...]`` that are fed at this index.
        """

    @abstractmethod
    def end(self) -> None:
        """Write the output half of the index that `begin` began."""

    @abstractmethod
    def hand_over(self) -> None:
        """Hand on what the index has completed."""

    @abstractmethod
    def drop(self, rows: Rows) -> None:
        """Give up what is unfinished of `rows`: their environments are gone."""

    @abstractmethod
    def state(self) -> Arrays:
        """All experience that is under way, see `seedflow.nested`."""

    @abstractmethod
    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""

    @property
    @abstractmethod
    def idle(self) -> int:
        """Slots or buffers that hold nothing."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Those that are full and wait."""

    @property
    @abstractmethod
    def crowded(self) -> bool:
        """Whether so many wait that training has enough to do without those that are still being written."""


class UnrollRecorder(Recorder):
    """Writes unrolls into slots.

    Parameters
    ----------
    rows
        Rows of the slab.
    storage, unrolls, freed
        Memory of the slots, the ring of finished ones, and the ring of free ones.
    batch
        Unrolls that an update takes.
    """

    _write_inputs: UnrollWriter
    _write_outputs: UnrollWriter

    def __init__(
        self, rows: int, storage: UnrollStorage, unrolls: IndexRing, freed: IndexRing, batch: int
    ) -> None:
        self.storage, self._batch = storage, batch
        self._unrolls, self._freed = unrolls, freed
        self._pool = SlotPool(rows, storage.slots, storage.unroll)
        self._open: tuple[Rows, Rows, Sequence[Tensor], Placement] | None = None

    def attach(self, staging: Staging, outputs: Mapping[str, Tensor]) -> None:
        self._write_inputs = self.storage.writer(staging.recorded)
        self._write_outputs = self.storage.writer(outputs)

    def take_back(self) -> int:
        self._pool.put_back(self._freed.take(self._freed.capacity))
        return self._pool.free

    def needed(self, rows: Rows) -> int:
        return self._pool.needed(rows)

    def begin(self, rows: Rows, chosen: Rows, state: Sequence[Tensor]) -> None:
        placement = self._pool.place(rows)
        self.storage.begin(placement, state, chosen)
        self._write_inputs(placement, chosen)
        self._open = rows, chosen, state, placement

    def end(self) -> None:
        assert self._open is not None
        _, chosen, _, placement = self._open
        self._write_outputs(placement, chosen)

    def hand_over(self) -> None:
        assert self._open is not None
        rows, chosen, state, _ = self._open
        completion = self._pool.advance(rows)
        self.storage.carry(completion, state, chosen)
        self.announce(completion)

    def plan(self, rows: Rows) -> tuple[Placement, Completion]:
        """Where the next index of each of `rows` goes, and what it completes, for who writes it himself."""
        return self._pool.place(rows), self._pool.advance(rows)

    def announce(self, completion: Completion) -> None:
        """Hand on what a planned index has completed, once its writing was submitted."""
        if len(completion.ready):
            self._unrolls.put(completion.ready.tolist())

    def drop(self, rows: Rows) -> None:
        self._pool.drop(rows)

    def state(self) -> Arrays:
        return nest(
            pool=self._pool.state(),
            storage=self.storage.state_arrays(),
            unrolls=self._unrolls.state(),
            freed=self._freed.state(),
        )

    def go_on_from(self, arrays: Arrays) -> None:
        for name, owner in (
            ("pool", self._pool),
            ("storage", self.storage),
            ("unrolls", self._unrolls),
            ("freed", self._freed),
        ):
            owner.go_on_from(part(arrays, name))

    @property
    def idle(self) -> int:
        return self._pool.free

    @property
    def waiting(self) -> int:
        return len(self._unrolls)

    @property
    def crowded(self) -> bool:
        return len(self._unrolls) > self._batch


class ChunkRecorder(Recorder):
    """Writes chunks for the replay, on the host: of what the device computes, only outputs come back.

    Parameters
    ----------
    arrivals
        The chunk buffers. A row of the slab is a lane.
    """

    _inputs: Mapping[str, NDArray[np.generic]]
    _outputs: Mapping[str, Tensor]

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._open: tuple[Rows, Rows, Sequence[Tensor], Placement] | None = None
        self._no_state = tuple(np.zeros((0, *s.shape), s.dtype) for s in arrivals.spec.state)

    def attach(self, staging: Staging, outputs: Mapping[str, Tensor]) -> None:
        fields = self._arrivals.fields
        self._inputs = {name: array for name, array in staging.host.items() if name in fields}
        self._outputs = {name: value for name, value in outputs.items() if name in fields}

    def take_back(self) -> int:
        return self._arrivals.free

    def needed(self, rows: Rows) -> int:
        return self._arrivals.needed(rows)

    def begin(self, rows: Rows, chosen: Rows, state: Sequence[Tensor]) -> None:
        placement = self._arrivals.place(rows)
        self._arrivals.write(placement, {name: value[chosen] for name, value in self._inputs.items()})
        self._open = rows, chosen, state, placement

    def end(self) -> None:
        assert self._open is not None
        _, chosen, _, placement = self._open
        self._arrivals.write(placement, {k: v.cpu().numpy()[chosen] for k, v in self._outputs.items()})

    def hand_over(self) -> None:
        assert self._open is not None
        rows, chosen, state, placement = self._open
        spec = self._arrivals.spec
        keeps = placement.begins
        if spec.bootstrap:
            keeps = keeps | (placement.times == spec.rows - 1)
        kept = self._no_state
        if keeps.any():  # a chunk begins here
            index = torch.from_numpy(chosen)
            kept = tuple(part[index.to(part.device)].cpu().numpy() for part in state)
        self._arrivals.advance(rows, kept)

    def drop(self, rows: Rows) -> None:
        self._arrivals.drop(rows)

    def state(self) -> Arrays:
        return self._arrivals.state_arrays()

    def go_on_from(self, arrays: Arrays) -> None:
        self._arrivals.go_on_from(arrays)

    @property
    def idle(self) -> int:
        return self._arrivals.idle

    @property
    def waiting(self) -> int:
        return len(self._arrivals.filled)

    @property
    def crowded(self) -> bool:
        return False  # a limiter, not the speed of training, decides when the replay takes more

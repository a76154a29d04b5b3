"""Where the inference loop writes what the environments do, index by index.

The loop knows a `Recorder` only: how many slots it has free, the input half of an index before acting, the
output half after it, and what to give up when an environment is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seedflow.learner.staging import Staging
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
        """Take in what training has freed; returns how many slots are free."""

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

    @property
    @abstractmethod
    def idle(self) -> int:
        """Slots that hold nothing."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Those that are full and wait."""


class UnrollRecorder(Recorder):
    """Writes unrolls into slots.

    Parameters
    ----------
    rows
        Rows of the slab.
    storage, unrolls, freed
        Memory of the slots, the ring of finished ones, and the ring of free ones.
    """

    _write_inputs: UnrollWriter
    _write_outputs: UnrollWriter

    def __init__(self, rows: int, storage: UnrollStorage, unrolls: IndexRing, freed: IndexRing) -> None:
        self.storage = storage
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

    @property
    def idle(self) -> int:
        return self._pool.free

    @property
    def waiting(self) -> int:
        return len(self._unrolls)

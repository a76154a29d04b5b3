"""The arrays behind the unroll slots, and batches gathered from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.kernels import unroll_append, unroll_gather
from seedflow.kernels.items import ItemCopier
from seedflow.nested import Arrays
from seedflow.rollout.slots import Completion, Placement
from seedflow.rollout.state_table import torch_dtype, zeros
from seedflow.specs import ArraySpec

Allocate = Callable[..., Tensor]

VERSION = ArraySpec("version", (), np.dtype(np.int64))
"""The field that tells which version of the weights acted."""


@dataclass(frozen=True)
class UnrollBatch:
    """B unrolls, time first.

    Attributes
    ----------
    fields
        Name to tensor ``[T+1, B, ...]``: observation leaves, reward, flags, action, behaviour outputs.
    state
        Core state fed at index 0, each ``[B, ...]``.
    """

    fields: dict[str, Tensor]
    state: tuple[Tensor, ...]


class UnrollStorage:
    """Flat, preallocated memory of all slots.

    Parameters
    ----------
    fields
        What is kept per index; names are the keys everywhere.
    state
        The network's core state, kept once a slot.
    slots, unroll
        Number of slots, and transitions T of each. Behind them is one more, `slots`, for what nobody reads.
    device
        Where the memory lives.
    allocate
        What gives the memory, with the arguments of `torch.zeros`.
    """

    def __init__(
        self,
        fields: Sequence[ArraySpec],
        state: Sequence[ArraySpec],
        slots: int,
        unroll: int,
        device: torch.device,
        allocate: Allocate = torch.zeros,
    ) -> None:
        self.field_specs, self.state_specs = tuple(fields), tuple(state)
        self.slots, self.unroll, self.device = slots, unroll, device

        def array(spec: ArraySpec, *leading: int) -> Tensor:
            return allocate((*leading, *spec.shape), dtype=torch_dtype(spec), device=device)

        self.fields = {spec.name: array(spec, slots + 1, unroll + 1) for spec in fields}
        self.state = tuple(array(spec, slots + 1) for spec in state)
        self._onward = self._states = None
        if device.type == "cpu":
            own = list(self.fields.values())
            self._onward = ItemCopier(own, own, axes=(2, 2))
            self._states = ItemCopier(self.state, None, axes=(1, 1))

    @staticmethod
    def nbytes(fields: Sequence[ArraySpec], state: Sequence[ArraySpec], slots: int, unroll: int) -> int:
        """Bytes that a storage takes."""
        return slots * ((unroll + 1) * sum(f.nbytes for f in fields) + sum(s.nbytes for s in state))

    def state_arrays(self) -> Arrays:
        """All memory, see `seedflow.nested`."""
        tensors = self.fields | {f"state {i}": value for i, value in enumerate(self.state)}
        return {name: value.cpu().numpy() for name, value in tensors.items()}

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state_arrays` gave."""
        tensors = self.fields | {f"state {i}": value for i, value in enumerate(self.state)}
        for name, value in tensors.items():
            value.copy_(torch.from_numpy(arrays[name]))

    def writer(self, sources: Mapping[str, Tensor]) -> UnrollWriter:
        """Prepare for writing the named arrays ``[n, ...]``, over and over."""
        return UnrollWriter(self, sources)

    def begin(
        self, placement: Placement, state: Sequence[Tensor], rows: NDArray[np.int64] | None = None
    ) -> None:
        """Store the core states ``[n, ...]`` of those indices that are the first of their slot.

        `rows` are the rows of `state` to which the indices belong; by default 0, 1, ...
        """
        if not self.state or not placement.begins.any():
            return
        begins = np.flatnonzero(placement.begins)
        self._store_state(placement.slots[begins], state, begins if rows is None else rows[begins])

    def carry(
        self, completion: Completion, state: Sequence[Tensor], rows: NDArray[np.int64] | None = None
    ) -> None:
        """Copy the last index of the full slots, with its core state, to the next slots' first."""
        if not len(completion.rows):
            return
        full, following = completion.ready, completion.following
        if self._onward is not None:
            zero = np.zeros_like(full)
            self._onward((following, zero), (full, zero + self.unroll))
        else:
            to, of = (torch.from_numpy(a).to(self.device) for a in (following, full))
            for field in self.fields.values():
                field[to, 0] = field[of, self.unroll]
        if self.state:
            self._store_state(following, state, completion.rows if rows is None else rows[completion.rows])

    def _store_state(
        self, slots: NDArray[np.int64], state: Sequence[Tensor], rows: NDArray[np.int64]
    ) -> None:
        if self._states is not None:
            self._states.aim(state)
            self._states((slots,), (rows,))
            return
        to, of = (torch.from_numpy(a).to(self.device) for a in (slots, rows))
        for table, value in zip(self.state, state, strict=True):
            table[to] = value[of]

    def new_batch(self, size: int) -> UnrollBatch:
        """Memory for a batch of `size` unrolls."""
        fields = {s.name: zeros(s, (self.unroll + 1, size), self.device) for s in self.field_specs}
        return UnrollBatch(fields, tuple(zeros(s, (size,), self.device) for s in self.state_specs))

    def gather(self, slots: Sequence[int], out: UnrollBatch) -> None:
        """Copy slots, time-major, into a batch."""
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        unroll_gather(list(self.fields.values()), index, list(out.fields.values()))
        for table, batch in zip(self.state, out.state, strict=True):
            torch.index_select(table, 0, index, out=batch)


class UnrollWriter:
    """Writes one index of many unrolls, always from the same arrays.

    Parameters
    ----------
    storage
        Where the unrolls are.
    sources
        Arrays ``[n, ...]`` by field name, on the storage's device; their memory is read at every call.
    """

    def __init__(self, storage: UnrollStorage, sources: Mapping[str, Tensor]) -> None:
        self._device = storage.device
        self._fields = [storage.fields[name] for name in sources]
        self._sources = list(sources.values())
        self._copier = None
        if storage.device.type == "cpu":
            self._copier = ItemCopier(self._fields, self._sources, axes=(2, 1))

    def __call__(self, placement: Placement, rows: NDArray[np.int64]) -> None:
        """Write the named rows of the arrays, one for each index that was placed."""
        if self._copier is not None:
            self._copier((placement.slots, placement.times), (rows,))
            return
        slots, times, of = (
            torch.from_numpy(a).to(self._device) for a in (placement.slots, placement.times, rows)
        )
        unroll_append(self._fields, slots, times, [source[of] for source in self._sources])

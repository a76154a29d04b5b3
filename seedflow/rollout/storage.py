"""The arrays behind the unroll slots, and batches gathered from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seedflow.kernels import unroll_append, unroll_gather
from seedflow.rollout.slots import Completion, Placement
from seedflow.rollout.state_table import zeros
from seedflow.specs import ArraySpec


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
        Number of slots, and transitions T of each.
    device
        Where the memory lives.
    """

    def __init__(
        self,
        fields: Sequence[ArraySpec],
        state: Sequence[ArraySpec],
        slots: int,
        unroll: int,
        device: torch.device,
    ) -> None:
        self._specs, self._state_specs = tuple(fields), tuple(state)
        self.unroll, self.device = unroll, device
        self.fields = {spec.name: zeros(spec, (slots, unroll + 1), device) for spec in fields}
        self.state = tuple(zeros(spec, (slots,), device) for spec in state)

    @staticmethod
    def nbytes(fields: Sequence[ArraySpec], state: Sequence[ArraySpec], slots: int, unroll: int) -> int:
        """Bytes that a storage takes."""
        return slots * ((unroll + 1) * sum(f.nbytes for f in fields) + sum(s.nbytes for s in state))

    def write(self, placement: Placement, values: Mapping[str, Tensor], rows: Tensor | None = None) -> None:
        """Write the named values ``[n, ...]`` of one index; `rows` selects among them first."""
        slots, times = (torch.from_numpy(a).to(self.device) for a in (placement.slots, placement.times))
        chosen = [value if rows is None else value[rows] for value in values.values()]
        unroll_append([self.fields[name] for name in values], slots, times, chosen)

    def begin(self, placement: Placement, state: Sequence[Tensor]) -> None:
        """Store the core states ``[n, ...]`` of those indices that are the first of their slot."""
        if not self.state or not placement.begins.any():
            return
        begins = torch.from_numpy(placement.begins).to(self.device)
        slots = torch.from_numpy(placement.slots[placement.begins]).to(self.device)
        for table, value in zip(self.state, state, strict=True):
            table[slots] = value[begins]

    def carry(self, completion: Completion, state: Sequence[Tensor]) -> None:
        """Copy the last index of the full slots, with its core state, to the next slots' first."""
        if not len(completion.rows):
            return
        full, following, rows = (
            torch.from_numpy(a).to(self.device)
            for a in (completion.ready, completion.following, completion.rows)
        )
        for field in self.fields.values():
            field[following, 0] = field[full, self.unroll]
        for table, value in zip(self.state, state, strict=True):
            table[following] = value[rows]

    def new_batch(self, size: int) -> UnrollBatch:
        """Memory for a batch of `size` unrolls."""
        fields = {s.name: zeros(s, (self.unroll + 1, size), self.device) for s in self._specs}
        return UnrollBatch(fields, tuple(zeros(s, (size,), self.device) for s in self._state_specs))

    def gather(self, slots: Sequence[int], out: UnrollBatch) -> None:
        """Copy slots, time-major, into a batch."""
        index = torch.tensor(slots, dtype=torch.int64, device=self.device)
        unroll_gather(list(self.fields.values()), index, list(out.fields.values()))
        for table, batch in zip(self.state, out.state, strict=True):
            torch.index_select(table, 0, index, out=batch)

"""The core state of every environment, kept by the learner between two steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seedflow.kernels import recurrent_gather, recurrent_scatter
from seedflow.nested import Arrays
from seedflow.specs import ArraySpec


class StateTable:
    """One row of core state per slab row, on the learner's device.

    Parameters
    ----------
    specs
        The network's `state_specs`.
    rows
        Number of rows. Behind them is one more, `rows`, for what nobody reads.
    device
        Where the tables live.
    """

    def __init__(self, specs: Sequence[ArraySpec], rows: int, device: torch.device) -> None:
        self.rows = rows
        self.tables = tuple(zeros(spec, (rows + 1,), device) for spec in specs)

    def state(self) -> Arrays:
        """All rows, see `seedflow.nested`."""
        return {str(i): table.cpu().numpy() for i, table in enumerate(self.tables)}

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        for i, table in enumerate(self.tables):
            table.copy_(torch.from_numpy(arrays[str(i)]))

    def gather(self, rows: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        """Copy the states of `rows`, with the initial (zero) state where `first` is set."""
        if not self.tables:
            return ()
        return tuple(recurrent_gather(self.tables, rows, first))

    def scatter(self, rows: Tensor, state: Sequence[Tensor]) -> None:
        """Store the states of `rows`."""
        if self.tables:
            recurrent_scatter(self.tables, rows, state)


def zeros(spec: ArraySpec, leading: tuple[int, ...], device: torch.device) -> Tensor:
    """A zeroed tensor for `leading` many items of a spec."""
    return torch.zeros(*leading, *spec.shape, dtype=torch_dtype(spec), device=device)


def torch_dtype(spec: ArraySpec) -> torch.dtype:
    """The torch dtype of a spec's items."""
    dtype: torch.dtype = getattr(torch, spec.dtype.name)
    return dtype

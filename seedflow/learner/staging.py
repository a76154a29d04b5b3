"""The batch between the slab and the network: rows of several groups, contiguous, on the device."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.kernels.items import ItemCopier
from seedflow.rpc.slab import COUNTED_SCALARS, Slab

Group = tuple[int, int, int]
"""Block, group and the number of environments that it holds."""


@dataclass(frozen=True)
class StagedRows:
    """One inference batch of n rows. The next `Staging.load` overwrites it.

    Attributes
    ----------
    host
        Every field of the rows, numpy ``[n, ...]``.
    tensors
        The same on the learner's device.
    observation
        The observation leaves of `tensors`, in the spec's order.
    """

    host: dict[str, NDArray[Any]]
    tensors: dict[str, Tensor]
    observation: tuple[Tensor, ...]


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Zeroed memory."""
    return torch.zeros(*shape, dtype=dtype)


class Staging:
    """Preallocated memory for one batch, on the host and on the learner's device.

    Parameters
    ----------
    slab
        Where rows come from and actions go.
    max_batch
        Rows at most.
    device
        The learner's.
    allocate
        What gives the host's memory, with the arguments of `zeros`.
    names
        The fields to copy, by default all.

    Attributes
    ----------
    host
        Every field of the rows, numpy ``[max_batch, ...]``.
    leaves
        Names of the observation's leaves.
    recorded
        The arrays ``[max_batch, ...]`` on the device that hold what an unroll keeps of the rows.
    """

    def __init__(
        self,
        slab: Slab,
        max_batch: int,
        device: torch.device,
        allocate: Callable[[Sequence[int], torch.dtype], Tensor] = zeros,
        names: Container[str] | None = None,
    ) -> None:
        self._slab, self._device = slab, device
        self._envs = slab.layout.envs
        self.leaves = [leaf.name for leaf in slab.layout.spec.observation]
        hosts = {
            name: allocate((max_batch, *field.shape[1:]), getattr(torch, field.dtype.name))
            for name, field in slab.layout.request_fields.items()
            if names is None or name in names
        }
        self.host: dict[str, NDArray[Any]] = {name: value.numpy() for name, value in hosts.items()}
        self._tensors = hosts if device.type == "cpu" else {k: v.to(device) for k, v in hosts.items()}
        self.recorded = {name: value for name, value in self._tensors.items() if name not in COUNTED_SCALARS}
        shared = [torch.from_numpy(slab.fields[name]) for name in self.host]
        self._copier = ItemCopier(list(hosts.values()), shared, axes=(1, 2))
        self._batch_rows = np.arange(max_batch)
        self._places, self._first_rows = cache(self._places_of), cache(self._first_rows_of)

    def load(self, groups: list[Group]) -> StagedRows:
        """Copy the rows of `groups`, one group after the other."""
        blocks, rows = self.index(groups)
        total = len(blocks)
        self._copier((self._batch_rows[:total],), (blocks, rows))
        staged = self._first_rows(total)
        if self._device.type != "cpu":
            for name, value in staged.tensors.items():
                value.copy_(torch.from_numpy(staged.host[name]))
        return staged

    def index(self, groups: list[Group]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block, and row within it, of each environment of `groups`."""
        places = [self._places(group) for group in groups]
        if len(places) == 1:
            return places[0]
        blocks, rows = (np.concatenate(parts) for parts in zip(*places, strict=True))
        return blocks, rows

    def store_actions(self, groups: list[Group], actions: NDArray[np.int64]) -> None:
        """Write ``actions [n]`` into the rows of `groups`."""
        total = 0
        for block, group, envs in groups:
            start = group * self._envs
            self._slab.fields["action"][block, start : start + envs] = actions[total : total + envs]
            total += envs

    def _places_of(self, group: Group) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Block, and row within it, of each environment of a group."""
        block, number, envs = group
        start = number * self._envs
        return np.full(envs, block), np.arange(start, start + envs)

    def _first_rows_of(self, total: int) -> StagedRows:
        tensors = {name: value[:total] for name, value in self._tensors.items()}
        return StagedRows(
            {name: array[:total] for name, array in self.host.items()},
            tensors,
            tuple(tensors[name] for name in self.leaves if name in tensors),
        )

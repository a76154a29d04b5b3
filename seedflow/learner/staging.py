"""The batch between the slab and the network: rows of several groups, contiguous, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.rpc.slab import COUNTED_SCALARS, Slab

Group = tuple[int, int, int]
"""Block, group and the number of environments that it holds."""


@dataclass(frozen=True)
class StagedRows:
    """One inference batch of n rows.

    Attributes
    ----------
    host
        Every field of the rows, numpy ``[n, ...]``; overwritten by the next `Staging.load`.
    tensors
        The same on the learner's device.
    observation
        The observation leaves of `tensors`, in the spec's order.
    """

    host: dict[str, NDArray[Any]]
    tensors: dict[str, Tensor]
    observation: tuple[Tensor, ...]

    @property
    def recorded(self) -> dict[str, Tensor]:
        """What an unroll keeps of them."""
        return {name: value for name, value in self.tensors.items() if name not in COUNTED_SCALARS}


class Staging:
    """Preallocated host memory for one batch.

    Parameters
    ----------
    slab
        Where rows come from and actions go.
    max_batch
        Rows at most.
    device
        The learner's.
    """

    def __init__(self, slab: Slab, max_batch: int, device: torch.device) -> None:
        self._slab, self._device = slab, device
        self._envs = slab.layout.envs
        self._leaves = [leaf.name for leaf in slab.layout.spec.observation]
        self._host = {
            name: np.zeros((max_batch, *field.shape[1:]), field.dtype)
            for name, field in slab.layout.request_fields.items()
        }

    def load(self, groups: list[Group]) -> StagedRows:
        """Copy the rows of `groups`, one group after the other."""
        total = 0
        for block, group, envs in groups:
            start = group * self._envs
            for name, host in self._host.items():
                host[total : total + envs] = self._slab.fields[name][block, start : start + envs]
            total += envs
        rows = {name: array[:total] for name, array in self._host.items()}
        tensors = {name: torch.from_numpy(array).to(self._device) for name, array in rows.items()}
        return StagedRows(rows, tensors, tuple(tensors[name] for name in self._leaves))

    def store_actions(self, groups: list[Group], action: Tensor) -> None:
        """Write ``action [n]`` into the rows of `groups`."""
        actions = action.cpu().numpy()
        total = 0
        for block, group, envs in groups:
            start = group * self._envs
            self._slab.fields["action"][block, start : start + envs] = actions[total : total + envs]
            total += envs

"""Rows of the slab on their way to the GPU, in one of two ways.

- `MappedRows`: the slab is pinned memory, and one kernel reads a batch from its rows over the bus.
- `CopiedRows`, where the driver does not allow that: the host gathers a batch in pinned memory, from which
  each field takes one copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.kernels import slab_gather
from seedflow.learner.cuda.gpu import Gpu
from seedflow.learner.forward import HostRows
from seedflow.learner.staging import Group, Staging
from seedflow.rpc.slab import COUNTED_SCALARS, Slab

HOST_FIELDS = ("reward", "first", *COUNTED_SCALARS)
"""What the host itself looks at, for statistics."""


class Rows(ABC):
    """The way of a batch from the slab to the GPU, and of its actions back.

    Attributes
    ----------
    leaves
        Names of the observation's leaves.
    """

    leaves: list[str]

    @abstractmethod
    def load(self, places: list[Group], bucket: int) -> HostRows:
        """The host's half; the GPU must be done with the batch before. Returns at least `HOST_FIELDS`."""

    @abstractmethod
    def issue(self, bucket: int) -> dict[str, Tensor]:
        """The GPU's half, always with the same addresses; returns what unrolls keep, ``[bucket, ...]``."""

    @abstractmethod
    def store_actions(self, places: list[Group], actions: NDArray[np.int64]) -> None:
        """Write actions into the slab."""

    @abstractmethod
    def close(self) -> None:
        """Release the slab."""


class CopiedRows(Rows):
    """Gathers on the host, then copies each field.

    Parameters
    ----------
    gpu
        Where to.
    slab
        Where from.
    max_batch
        Rows at most.
    """

    def __init__(self, gpu: Gpu, slab: Slab, max_batch: int) -> None:
        self._staging = Staging(slab, max_batch, torch.device("cpu"), gpu.host)
        self.leaves = self._staging.leaves
        self._hosts = self._staging.recorded
        self._tensors = {
            name: torch.zeros_like(value, device=gpu.device) for name, value in self._hosts.items()
        }

    def load(self, places: list[Group], bucket: int) -> HostRows:
        """See `Rows.load`."""
        return self._staging.load(places).host

    def issue(self, bucket: int) -> dict[str, Tensor]:
        """See `Rows.issue`."""
        fields = {name: value[:bucket] for name, value in self._tensors.items()}
        for name, value in fields.items():
            value.copy_(self._hosts[name][:bucket], non_blocking=True)
        return fields

    def store_actions(self, places: list[Group], actions: NDArray[np.int64]) -> None:
        """See `Rows.store_actions`."""
        self._staging.store_actions(places, actions)

    def close(self) -> None:
        """Nothing to release."""


class MappedRows(Rows):
    """Lets the GPU read the slab's rows where they are.

    The parameters are those of `CopiedRows`.

    Raises
    ------
    RuntimeError
        If the slab cannot be pinned.
    """

    def __init__(self, gpu: Gpu, slab: Slab, max_batch: int) -> None:
        gpu.register(slab.memory)
        self._gpu, self._memory = gpu, slab.memory
        self._staging = Staging(slab, max_batch, torch.device("cpu"), names=HOST_FIELDS)
        self.leaves = self._staging.leaves
        names = [name for name in slab.layout.request_fields if name not in COUNTED_SCALARS]
        self._fields = {name: torch.from_numpy(slab.fields[name]) for name in names}
        self._tensors = {
            name: torch.zeros(max_batch, *field.shape[2:], dtype=field.dtype, device=gpu.device)
            for name, field in self._fields.items()
        }
        self._index: dict[int, tuple[Tensor, Tensor]] = {}  # by bucket: blocks and rows, here and there

    def load(self, places: list[Group], bucket: int) -> HostRows:
        """See `Rows.load`. Padding reads what the first environment's does."""
        blocks, rows = self._staging.index(places)
        here = self._index_of(bucket)[0].numpy()
        here[0, : len(blocks)], here[0, len(blocks) :] = blocks, blocks[0]
        here[1, : len(rows)], here[1, len(rows) :] = rows, rows[0]
        return self._staging.load(places).host

    def issue(self, bucket: int) -> dict[str, Tensor]:
        """See `Rows.issue`."""
        here, there = self._index_of(bucket)
        there.copy_(here, non_blocking=True)
        fields = {name: value[:bucket] for name, value in self._tensors.items()}
        slab_gather(list(self._fields.values()), there[0], there[1], list(fields.values()))
        return fields

    def store_actions(self, places: list[Group], actions: NDArray[np.int64]) -> None:
        """See `Rows.store_actions`."""
        self._staging.store_actions(places, actions)

    def close(self) -> None:
        """Let go of the slab, which may then be unmapped."""
        if self._fields:
            self._gpu.unregister(self._memory)
            self._fields = {}
            self._memory = np.empty(0, np.uint8)

    def _index_of(self, bucket: int) -> tuple[Tensor, Tensor]:
        if bucket not in self._index:
            here = self._gpu.host((2, bucket), torch.int64)
            self._index[bucket] = here, torch.zeros_like(here, device=self._gpu.device)
        return self._index[bucket]


def make_rows(gpu: Gpu, slab: Slab, max_batch: int, report: Callable[[str], None]) -> Rows:
    """Rows read where they are, or else copied, which is reported with the reason."""
    try:
        return MappedRows(gpu, slab, max_batch)
    except RuntimeError as error:
        report(
            f"the {slab.memory.nbytes / 2**20:.1f} MiB that actors write to cannot be pinned, so every batch "
            f"is copied once more on the host: {error}"
        )
        return CopiedRows(gpu, slab, max_batch)

"""Rows of the slab on their way to the GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from seedflow.learner.cuda.gpu import Gpu
from seedflow.learner.forward import HostRows
from seedflow.learner.staging import Group, Staging
from seedflow.rpc.slab import Slab


class CopiedRows:
    """Gathers rows in pinned memory of the host, from which each field takes one copy to the GPU.

    Parameters
    ----------
    gpu
        Where to.
    slab
        Where from.
    max_batch
        Rows at most.

    Attributes
    ----------
    staging
        The host's half.
    tensors
        What unrolls keep of the rows, ``[max_batch, ...]`` on the GPU.
    """

    def __init__(self, gpu: Gpu, slab: Slab, max_batch: int) -> None:
        self.staging = Staging(slab, max_batch, torch.device("cpu"), gpu.host)
        self._hosts = self.staging.recorded
        self.tensors = {
            name: torch.zeros_like(value, device=gpu.device) for name, value in self._hosts.items()
        }

    def load(self, places: list[Group]) -> HostRows:
        """Copy the rows of some groups out of the slab; the host must not overtake the last `upload`."""
        return self.staging.load(places).host

    def upload(self, bucket: int) -> dict[str, Tensor]:
        """Issue the copies of a whole bucket; returns its fields on the GPU."""
        staged = {name: value[:bucket] for name, value in self.tensors.items()}
        for name, value in staged.items():
            value.copy_(self._hosts[name][:bucket], non_blocking=True)
        return staged

"""Memory that the learner's loops share, whether they are threads of one process or two processes.

The loops hand each other indices into arrays that were allocated at the start, announced by eventfds. In one
process these are ordinary tensors. For two processes they lie in an anonymous file: the second process maps
the same file, asks for the same arrays in the same order, and so gets the same memory.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.errors import TransportError
from seedflow.rollout import IndexRing
from seedflow.rollout.lock import EventLock


class Arena:
    """Arrays, rings and locks in this process's own memory.

    Parameters
    ----------
    device
        Where the arrays live; rings and counters are always in the CPU's memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """A zeroed array, on the arena's device unless another one is named."""
        return torch.zeros(*shape, dtype=dtype, device=self.device if device is None else device)

    def counters(self, size: int) -> NDArray[np.int64]:
        """Zeroed integers in the CPU's memory."""
        return self.zeros((size,), torch.int64, _CPU).numpy()

    def ring(self, capacity: int) -> IndexRing:
        """A ring between two loops."""
        return IndexRing(capacity, self.counters(capacity + 2), self._event(0, os.EFD_NONBLOCK))

    def lock(self) -> EventLock:
        """A lock that two loops may hold in turn."""
        return EventLock(self._event(1, os.EFD_NONBLOCK))

    def close(self) -> None:
        """Let go of what the arena itself holds; arrays, rings and locks stay their owners'."""

    def _event(self, value: int, flags: int) -> int:
        return os.eventfd(value, flags | os.EFD_CLOEXEC)


class SharedArena(Arena):
    """Arrays, rings and locks that a child process can take over; on the CPU only.

    Parameters
    ----------
    fds
        File descriptors inherited from the process that made the arena, as its `fds` named them; None: make
        a new one.

    Attributes
    ----------
    fds
        What the other process has to inherit, complete once everything has been asked for.
    """

    def __init__(self, fds: Sequence[int] | None = None) -> None:
        super().__init__(_CPU)
        self._inherited = None if fds is None else list(fds)
        self._end = 0
        if self._inherited is None:
            self.fds = [os.memfd_create("seedflow-learner", os.MFD_CLOEXEC)]
        else:
            self.fds = [self._inherited.pop(0)]

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | None = None) -> Tensor:
        """The next array of the file, zeroed by whoever made the arena.

        Raises
        ------
        TransportError
            If the memory is not there.
        """
        items = math.prod(shape)
        nbytes = max(1, items * torch.empty((), dtype=dtype).element_size())
        offset, self._end = self._end, self._end + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            if self._end > installed:  # else the kernel would give memory until there is none left
                raise OSError(f"this machine has {installed / 2**20:.0f} MiB")
            if self._inherited is None:
                os.posix_fallocate(self.fds[0], offset, self._end - offset)
            memory = mmap.mmap(self.fds[0], nbytes, offset=offset)
        except (OSError, ValueError) as error:
            raise TransportError(
                f"no {nbytes / 2**20:.1f} MiB of shared memory for the learner's loops: {error}; lower "
                "rollout.queue, rollout.prefetch or actor.envs_per_group, or set train.runs_in = thread"
            ) from error
        if not items:
            return torch.zeros(*shape, dtype=dtype)
        return torch.frombuffer(memory, dtype=dtype, count=items).view(*shape)

    def close(self) -> None:
        """Close the file; what was mapped stays until its last array is gone."""
        if self.fds:
            os.close(self.fds[0])
            self.fds = []

    def _event(self, value: int, flags: int) -> int:
        event = self._inherited.pop(0) if self._inherited is not None else super()._event(value, flags)
        os.set_inheritable(event, False)
        self.fds.append(event)
        return event


_CPU = torch.device("cpu")

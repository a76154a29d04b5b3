"""Which unroll slot each environment writes to next.

A slot holds one unroll: T+1 consecutive indices of one environment. Consecutive unrolls share one index
(overlap 1): the last index of an unroll, which only bootstraps, is the first of the next. The pool
decides; it touches no array of the unrolls themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import SeedflowError
from seedflow.kernels.jit import cpu_kernel
from seedflow.nested import Arrays, numbers


@dataclass(frozen=True)
class Placement:
    """Where the indices of one batch go, one entry a row.

    Attributes
    ----------
    slots, times
        Slot and index within it.
    begins
        Rows whose index is the first of a slot: its core state is stored.
    """

    slots: NDArray[np.int64]
    times: NDArray[np.int64]
    begins: NDArray[np.bool_]


@dataclass(frozen=True)
class Completion:
    """What a batch completed.

    Attributes
    ----------
    rows
        Positions in the batch whose slot became full.
    ready
        Their slots, complete now.
    following
        Their next slots; index T of `ready` is copied to index 0 of these.
    """

    rows: NDArray[np.int64]
    ready: NDArray[np.int64]
    following: NDArray[np.int64]


class SlotPool:
    """Assignment of slots to environments.

    Invariant: a slot is in exactly one place: free, held by one environment, or given away as ready
    (until `put_back`).

    Parameters
    ----------
    envs
        Number of environment rows.
    slots
        Number of slots.
    unroll
        Transitions T of an unroll; a slot holds T+1 indices.
    """

    def __init__(self, envs: int, slots: int, unroll: int) -> None:
        self.unroll = unroll
        self._free = np.arange(slots)  # a ring
        self._ring = np.array([0, slots])  # its head, and how many it holds
        self._slot = np.full(envs, -1, np.int64)
        self._time = np.zeros(envs, np.int64)
        self._seen = np.zeros(envs, np.int64)  # the last batch that named an env
        self._batch = 0

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return int(self._ring[1])

    def needed(self, envs: NDArray[np.int64]) -> int:
        """Free slots that one more index of each of `envs` takes."""
        return _needed(self._slot, self._time, self.unroll, envs)

    def place(self, envs: NDArray[np.int64]) -> Placement:
        """Say where the next index of each env goes.

        Raises
        ------
        SeedflowError
            For an env named twice, or with fewer free slots than `needed`; nothing is changed then.
        """
        self._batch += 1
        if not _fits(self._slot, self._time, self._ring, self._seen, self._batch, self.unroll, envs):
            raise self._why_not(envs)
        return Placement(*_place(self._slot, self._time, self._free, self._ring, envs))

    def advance(self, envs: NDArray[np.int64]) -> Completion:
        """Count the index that `place` placed as written; hand out the slots that are full."""
        return Completion(*_advance(self._slot, self._time, self._free, self._ring, self.unroll, envs))

    def drop(self, envs: NDArray[np.int64]) -> int:
        """Give up the partial unrolls of `envs`; returns how many there were."""
        held = envs[self._slot[envs] >= 0]
        self.put_back(self._slot[held].tolist())
        self._slot[held] = -1
        self._time[held] = 0
        return len(held)

    def put_back(self, slots: Iterable[int]) -> None:
        """Take back ready slots whose contents were copied."""
        returned = np.fromiter(slots, np.int64)
        if len(returned):
            _put_back(self._free, self._ring, returned)

    def _why_not(self, envs: NDArray[np.int64]) -> SeedflowError:
        values, counts = np.unique(envs, return_counts=True)
        if len(values) < len(envs):
            return SeedflowError(f"environment rows {values[counts > 1].tolist()} appear twice in one batch")
        return SeedflowError(f"{self.needed(envs)} unroll slots are needed and {self.free} are free")

    def state(self) -> Arrays:
        """Who holds which slot, see `seedflow.nested`."""
        own = {"free": self._free, "ring": self._ring, "slot": self._slot, "time": self._time}
        return own | {"seen": self._seen, "batch": numbers(self._batch)}

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._batch = int(arrays["batch"][0])
        for name, array in self.state().items():
            array[:] = arrays[name]


# What follows is compiled by Numba: a batch of environments a call.


@cpu_kernel
def _needed(slot: Any, time: Any, unroll: int, envs: Any) -> int:
    count = 0
    for env in envs:
        if slot[env] < 0 or time[env] == unroll:
            count += 1
    return count


@cpu_kernel
def _fits(slot: Any, time: Any, ring: Any, seen: Any, batch: int, unroll: int, envs: Any) -> bool:
    """Whether every env is named once and there are slots for them all."""
    for env in envs:
        if seen[env] == batch:
            return False
        seen[env] = batch
    return bool(_needed(slot, time, unroll, envs) <= ring[1])


@cpu_kernel
def _take_free(free: Any, ring: Any) -> Any:
    slot = free[ring[0]]
    ring[0] = (ring[0] + 1) % free.shape[0]
    ring[1] -= 1
    return slot


@cpu_kernel
def _place(slot: Any, time: Any, free: Any, ring: Any, envs: Any) -> Any:
    slots, times = np.empty(len(envs), np.int64), np.empty(len(envs), np.int64)
    begins = np.empty(len(envs), np.bool_)
    for i in range(len(envs)):
        env = envs[i]
        if slot[env] < 0:
            slot[env] = _take_free(free, ring)
            time[env] = 0
        slots[i], times[i] = slot[env], time[env]
        begins[i] = times[i] == 0
    return slots, times, begins


@cpu_kernel
def _advance(slot: Any, time: Any, free: Any, ring: Any, unroll: int, envs: Any) -> Any:
    rows = np.empty(len(envs), np.int64)
    ready, following = np.empty(len(envs), np.int64), np.empty(len(envs), np.int64)
    count = 0
    for i in range(len(envs)):
        env = envs[i]
        time[env] += 1
        if time[env] <= unroll:
            continue
        rows[count], ready[count] = i, slot[env]
        following[count] = slot[env] = _take_free(free, ring)
        time[env] = 1
        count += 1
    return rows[:count], ready[:count], following[:count]


@cpu_kernel
def _put_back(free: Any, ring: Any, slots: Any) -> None:
    for slot in slots:
        free[(ring[0] + ring[1]) % free.shape[0]] = slot
        ring[1] += 1

"""Which unroll slot each environment writes to next.

A slot holds one unroll: T+1 consecutive indices of one environment. Consecutive unrolls share one index
(overlap 1): the last index of an unroll, which only bootstraps, is the first of the next. The pool
decides; it touches no array of the unrolls themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import SeedflowError


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
        self._free = deque(range(slots))
        self._slot = np.full(envs, -1, np.int64)
        self._time = np.zeros(envs, np.int64)

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def needed(self, envs: NDArray[np.int64]) -> int:
        """Free slots that one more index of each of `envs` takes."""
        slots = self._slot[envs]
        return int(np.count_nonzero(slots < 0) + np.count_nonzero(self._time[envs] == self.unroll))

    def place(self, envs: NDArray[np.int64]) -> Placement:
        """Say where the next index of each env goes.

        Raises
        ------
        SeedflowError
            For an env named twice, or with fewer free slots than `needed`; nothing is changed then.
        """
        if len(np.unique(envs)) != len(envs):
            values, counts = np.unique(envs, return_counts=True)
            raise SeedflowError(f"environment rows {values[counts > 1].tolist()} appear twice in one batch")
        if self.needed(envs) > self.free:
            raise SeedflowError(f"{self.needed(envs)} unroll slots are needed and {self.free} are free")
        for env in envs[self._slot[envs] < 0].tolist():
            self._slot[env] = self._free.popleft()
            self._time[env] = 0
        times = self._time[envs]
        return Placement(self._slot[envs], times, times == 0)

    def advance(self, envs: NDArray[np.int64]) -> Completion:
        """Count the index that `place` placed as written; hand out the slots that are full."""
        times = self._time[envs]
        rows = np.flatnonzero(times == self.unroll)
        self._time[envs] = times + 1
        full = envs[rows]
        ready = self._slot[full]
        following = np.array([self._free.popleft() for _ in range(len(full))], np.int64)
        self._slot[full] = following
        self._time[full] = 1
        return Completion(rows, ready, following)

    def drop(self, envs: NDArray[np.int64]) -> int:
        """Give up the partial unrolls of `envs`; returns how many there were."""
        held = envs[self._slot[envs] >= 0]
        self._free.extend(self._slot[held].tolist())
        self._slot[held] = -1
        self._time[held] = 0
        return len(held)

    def put_back(self, slots: Iterable[int]) -> None:
        """Take back ready slots whose contents were copied."""
        self._free.extend(slots)

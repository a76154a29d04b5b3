"""A ring of small integers between two loops: one puts, one takes.

Slots and batch buffers are preallocated and named by their index; handing one over is handing over
that integer. The ring is one flat array and an eventfd, so that its two sides can be two threads or
two processes.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable, Sequence

import numpy as np


class IndexRing:
    """A bounded first-in, first-out ring for exactly one producer and one consumer.

    Parameters
    ----------
    capacity
        Indices held at most.
    buffer
        ``int64[capacity + 2]``, zeroed, for a ring in shared memory; by default private memory.
    event
        A non-blocking eventfd, which the ring closes; by default a new one.

    Notes
    -----
    Only the producer writes ``tail``, only the consumer writes ``head``; the write to the eventfd is
    the barrier between an item and its announcement.
    """

    def __init__(self, capacity: int, buffer: np.ndarray | None = None, event: int | None = None) -> None:
        self.capacity = capacity
        self._cells = np.zeros(capacity + 2, np.int64) if buffer is None else buffer
        self._items, self._counters = self._cells[:capacity], self._cells[capacity:]  # head, tail
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if event is None else event

    def __len__(self) -> int:
        head, tail = self._counters.tolist()
        return int(tail - head)

    def put(self, indices: Iterable[int]) -> None:
        """Append indices.

        Raises
        ------
        OverflowError
            When the ring is full: capacities are chosen so that it never is.
        """
        head, tail = self._counters.tolist()
        for index in indices:
            if tail - head >= self.capacity:
                raise OverflowError(f"a ring of {self.capacity} indices is full")
            self._items[tail % self.capacity] = index
            tail += 1
        self._counters[1] = tail
        os.eventfd_write(self._event, 1)

    def take(self, most: int) -> list[int]:
        """Remove and return the oldest indices, at most `most`."""
        head, tail = self._counters.tolist()
        count = min(most, tail - head)
        taken = [int(self._items[(head + i) % self.capacity]) for i in range(count)]
        self._counters[0] = head + count
        return taken

    def wait(self, timeout: float) -> None:
        """Return when something was put since the last call, or after `timeout` seconds."""
        wait_any((self,), timeout)

    def wake(self) -> None:
        """Make a waiting consumer look up."""
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Release the eventfd; the ring is not used afterwards."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


def wait_any(rings: Sequence[IndexRing], timeout: float) -> None:
    """Return when something was put into any of the rings since it was last waited for, or after `timeout`
    seconds."""
    ready, _, _ = select.select([ring._event for ring in rings], [], [], timeout)
    for event in ready:
        with contextlib.suppress(BlockingIOError):  # taken by a call in between
            os.eventfd_read(event)

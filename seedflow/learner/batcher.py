"""Which groups go into the next inference batch. Decides; touches no socket and no array."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from seedflow.rpc.leases import Lease


@dataclass(frozen=True)
class PendingGroup:
    """A group whose rows hold a step that has not been acted on."""

    lease: Lease
    group: int
    rang_at: float


class Batcher:
    """Work-conserving batches: oldest groups first, as many as fit.

    Parameters
    ----------
    max_batch, min_batch
        Environments in one batch.
    deadline
        Seconds the oldest group waits for `min_batch`; after that a smaller batch goes.
    """

    def __init__(self, max_batch: int, min_batch: int, deadline: float) -> None:
        self._max, self._min, self._deadline = max_batch, min_batch, deadline
        self._pending: deque[PendingGroup] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingGroup]:
        return iter(self._pending)

    def add(self, lease: Lease, group: int, now: float) -> None:
        """Note that a group has rung."""
        self._pending.append(PendingGroup(lease, group, now))

    def drop(self, lease: Lease) -> None:
        """Forget the groups of a lease that is gone."""
        self._pending = deque(p for p in self._pending if p.lease.id != lease.id)

    def due_in(self, now: float) -> float | None:
        """Seconds until a batch may go; None while nothing is pending."""
        if not self._pending:
            return None
        if sum(p.lease.envs for p in self._pending) >= self._min:
            return 0.0
        return max(0.0, self._pending[0].rang_at + self._deadline - now)

    def take(self, now: float, fits: Callable[[PendingGroup], bool]) -> list[PendingGroup]:
        """The groups of the next batch; none before it is due.

        Parameters
        ----------
        now
            Monotonic seconds.
        fits
            Asked for each candidate in turn; a group that it refuses keeps its place in the queue (its
            slots may not be free yet), and groups behind it are still asked.
        """
        if self.due_in(now) != 0.0:
            return []
        taken: list[PendingGroup] = []
        kept: list[PendingGroup] = []
        room = self._max
        while self._pending:
            candidate = self._pending.popleft()
            if candidate.lease.envs <= room and fits(candidate):
                room -= candidate.lease.envs
                taken.append(candidate)
            else:
                kept.append(candidate)
        self._pending.extend(kept)
        return taken

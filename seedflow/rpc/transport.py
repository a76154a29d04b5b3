"""The learner's side of a connection, as the inference loop sees it.

The loop drives one `LearnerTransport`: it polls events, takes the groups that rang into a batch (`hold`),
writes their actions into the slab, answers each group (`reply`) and lets go of the rows (`release`).
`ControlServer` implements it over unix sockets, `InlineTransport` within one process; both leave the
decisions to a `LeaseTable`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from seedflow.rpc.leases import DroppedLease, Ending, Lease, LeaseCounts, LeaseTable
from seedflow.rpc.messages import FaultKind
from seedflow.rpc.slab import Slab


@dataclass(frozen=True)
class LeaseOpened:
    """A lease was granted; its environments begin with a reset."""

    lease: Lease


@dataclass(frozen=True)
class LeaseClosed:
    """A lease is over: discard its partial unrolls and its groups that rang but are in no batch yet.

    A batch that holds it goes on undisturbed; its reply is discarded.
    """

    lease: Lease
    reason: str
    ending: Ending


@dataclass(frozen=True)
class GroupRang:
    """The request half of a group is in its rows."""

    lease: Lease
    group: int


@dataclass(frozen=True)
class FaultReported:
    """An actor reported the failure of which it is about to end, or its predecessor has ended."""

    lease: Lease
    text: str
    kind: FaultKind


Event = LeaseOpened | LeaseClosed | GroupRang | FaultReported


class LearnerTransport(Protocol):
    """What the inference loop asks of a transport.

    All methods belong to the thread of the inference loop, `wake` apart.
    """

    @property
    def slab(self) -> Slab:
        """The rows of all leases."""

    def poll(self, timeout: float) -> list[Event]:
        """Events since the last call, in the order in which they happened.

        Waits up to `timeout` seconds for a first one, and may return earlier without any.
        """

    def reply(self, lease_id: int, group: int) -> None:
        """Tell a group's owner that its actions are in the rows and that nobody reads the rows any more.

        Does nothing for a lease that is over.

        Raises
        ------
        ValueError
            If the group has no request in flight.
        """

    def hold(self, lease_ids: Iterable[int]) -> None:
        """A batch is going to read rows of these leases: keep their blocks from being granted again."""

    def release(self, lease_ids: Iterable[int]) -> None:
        """Undo one `hold` of each."""

    def tell_exit(self, reason: str) -> None:
        """The run has ended: tell all actors, and those that register from now on, to exit with success."""

    def wake(self) -> None:
        """Make a waiting `poll` return. May be called by any thread, also after `close`."""

    def counts(self) -> LeaseCounts:
        """Counters and gauges of the leases. May be called by any thread."""

    def metrics(self) -> dict[str, float]:
        """These and the transport's own, by metric name. May be called by any thread."""

    def close(self) -> None:
        """Close all connections; leaves the slab open. May be called twice."""


def admit_ring(table: LeaseTable, slab: Slab, lease: Lease, group: int, now: float) -> DroppedLease | None:
    """Let the table decide on a ring, with what it has to know of the slab.

    Returns
    -------
    DroppedLease or None
        Set where the ring broke the protocol.
    """
    all_first = True
    if table.fresh(lease.id, group):
        start = group * slab.layout.envs
        all_first = bool(slab.fields["first"][lease.block, start : start + lease.envs].all())
    dropped = table.ring(lease.id, group, now, all_first)
    if dropped is not None:
        return dropped
    requests, replies = int(slab.requests[lease.block, group]), int(slab.replies[lease.block, group])
    if requests != replies + 1:
        return table.drop(
            lease.id,
            f"group {group} rang with request counter {requests} after {replies} replies: expected one more "
            "request than replies",
        )
    return None

"""A transport within one process and one thread: same rows, same leases, no sockets, no time.

The one-process runtime drives actors and inference loop in turn. Nothing can arrive while one of them
waits, so `poll` and `wait` never wait; a heartbeat is not needed and leases do not expire.

Examples
--------
>>> import numpy as np
>>> from seedflow.rpc.leases import LeaseTable, Registration
>>> from seedflow.rpc.slab import BlockLayout, Slab
>>> from seedflow.specs import ArraySpec, EnvSpec
>>> spec = EnvSpec((ArraySpec("observation", (4,), np.dtype("float32")),), num_actions=2)
>>> layout = BlockLayout(spec, groups=1, envs=2)
>>> table = LeaseTable(1, 0, 0, groups=1, envs=2, fingerprint=spec.fingerprint, lease_seconds=30.0)
>>> slab = Slab(layout, table.blocks)
>>> transport = InlineTransport(layout, slab, table)
>>> actor = transport.connect(Registration("train", 0, 0, spec.fingerprint, 1, 2))
>>> actor.rows(0)["first"][:] = True
>>> actor.ring(0)
>>> opened, rang = transport.poll(0.0)
>>> slab.fields["action"][rang.lease.block, :2] = [1, 0]
>>> transport.reply(rang.lease.id, rang.group)
>>> actor.wait(0.0), actor.rows(0)["action"].tolist()
(0, [1, 0])
>>> slab.close()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from seedflow.errors import ConnectionLost, RegistrationRefused
from seedflow.rpc.connection import Connection, Exit
from seedflow.rpc.leases import DroppedLease, Lease, LeaseCounts, LeaseTable, RefusedLease, Registration
from seedflow.rpc.messages import ExitCode, FaultKind
from seedflow.rpc.slab import Block, BlockLayout, Slab
from seedflow.rpc.transport import (
    Event,
    FaultReported,
    GroupRang,
    LeaseClosed,
    LeaseOpened,
    admit_ring,
)

NOW = 0.0  # leases of one process do not expire


class InlineTransport:
    """A `LearnerTransport` whose actors live in the same thread.

    Parameters
    ----------
    layout, slab, table
        As of `ControlServer`; the slab stays the caller's.
    """

    def __init__(self, layout: BlockLayout, slab: Slab, table: LeaseTable) -> None:
        if slab.blocks < table.blocks or slab.layout != layout:
            raise ValueError(
                f"the slab ({slab.blocks} blocks) does not fit the table ({table.blocks} blocks)"
            )
        self.slab, self.table = slab, table
        self._events: list[Event] = []
        self._connections: dict[int, InlineConnection] = {}
        self._finished: str | None = None

    def connect(self, registration: Registration) -> InlineConnection:
        """Register an actor.

        Raises
        ------
        RegistrationRefused, Exit
            As `seedflow.rpc.client.connect`.
        """
        if self._finished is not None:
            raise Exit(self._finished, "finished")
        decision = self.table.register(registration, NOW)
        if decision.superseded is not None:
            reason = f"superseded by generation {registration.generation} of {registration.name}"
            self._end(DroppedLease(decision.superseded, reason, "superseded"), "superseded")
        if isinstance(decision, RefusedLease):
            raise RegistrationRefused(decision.reason, decision.retryable)
        lease = decision.lease
        self.slab.reset_counters(lease.block)
        connection = InlineConnection(self, lease, Block.of(self.slab, lease.block))
        self._connections[lease.id] = connection
        self._events.append(LeaseOpened(lease))
        return connection

    def poll(self, timeout: float) -> list[Event]:
        """Events since the last call; never waits, see `LearnerTransport.poll`."""
        events, self._events = self._events, []
        return events

    def reply(self, lease_id: int, group: int) -> None:
        """See `LearnerTransport.reply`."""
        if self.table.reply(lease_id, group, NOW):
            connection = self._connections[lease_id]
            connection.block.count_reply(group)
            connection.replies.append(group)

    def hold(self, lease_ids: Iterable[int]) -> None:
        """See `LearnerTransport.hold`."""
        self.table.hold(lease_ids)

    def release(self, lease_ids: Iterable[int]) -> None:
        """See `LearnerTransport.release`."""
        self.table.release(lease_ids)

    def tell_exit(self, reason: str) -> None:
        """See `LearnerTransport.tell_exit`."""
        self._finished = reason
        for lease in self.table.active():
            self._connections[lease.id].end = Exit(reason, "finished")

    def wake(self) -> None:
        """Does nothing: `poll` never waits."""

    def counts(self) -> LeaseCounts:
        """See `LearnerTransport.counts`."""
        return self.table.counts()

    def metrics(self) -> dict[str, float]:
        """See `LearnerTransport.metrics`."""
        return self.table.counts().metrics()

    def close(self) -> None:
        """See `LearnerTransport.close`."""
        for connection in list(self._connections.values()):
            connection.end = ConnectionLost("the learner closed")
        self._connections.clear()

    def rang(self, connection: InlineConnection, group: int) -> None:
        """An actor's doorbell; called by its connection."""
        dropped = admit_ring(self.table, self.slab, connection.lease, group, NOW)
        if dropped is not None:
            self._end(dropped, "dropped")
        else:
            self._events.append(GroupRang(connection.lease, group))

    def faulted(self, connection: InlineConnection, text: str, kind: FaultKind) -> None:
        """An actor's last word; called by its connection."""
        self._events.append(FaultReported(connection.lease, text, kind))

    def left(self, connection: InlineConnection) -> None:
        """An actor has closed; called by its connection."""
        if self._connections.pop(connection.lease.id, None) is None:
            return
        dropped = self.table.writer_gone(connection.lease.id)
        if dropped is not None:
            self._events.append(LeaseClosed(dropped.lease, dropped.reason, dropped.ending))

    def _end(self, dropped: DroppedLease, code: ExitCode) -> None:
        self._events.append(LeaseClosed(dropped.lease, dropped.reason, dropped.ending))
        connection = self._connections[dropped.lease.id]
        if code == "dropped":
            connection.end = ConnectionLost(f"the learner dropped this lease: {dropped.reason}")
        else:
            connection.end = Exit(dropped.reason, code)


class InlineConnection(Connection):
    """A `Connection` to an `InlineTransport`; made by its `connect`.

    Attributes
    ----------
    replies : deque of int
        Groups whose actions are in their rows, oldest first.
    end : Exception or None
        Why this connection is over.
    """

    def __init__(self, transport: InlineTransport, lease: Lease, block: Block) -> None:
        self.lease, self.block = lease, block
        self.replies: deque[int] = deque()
        self.end: ConnectionLost | Exit | None = None
        self._transport = transport

    def ring(self, group: int) -> None:
        """See `Connection.ring`."""
        if self.end is not None:
            raise self.end
        self.block.count_request(group)
        self._transport.rang(self, group)

    def wait(self, timeout: float) -> int | None:
        """See `Connection.wait`; never waits."""
        if self.replies:
            return self.replies.popleft()
        if self.end is not None:
            raise self.end
        return None

    def report_fault(self, text: str, kind: FaultKind = "raised") -> None:
        """See `Connection.report_fault`."""
        self._transport.faulted(self, text, kind)

    def close(self) -> None:
        """See `Connection.close`."""
        self._transport.left(self)
        self.block.close()

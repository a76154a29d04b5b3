"""The lease table: which actor holds which block of the slab. Decisions only, no I/O.

Every method is an event (a registration, a ring, an end-of-file, a tick of the clock); what it returns tells
the transport what to do. Time is passed in, in seconds of any monotonic clock.

A lease goes through three states::

    active ──drop──▶ quarantined ──writer gone and no batch holds it──▶ forgotten (its block is free)

A dropped lease's actor may still be writing into its block (it may be stopped, or slow to hear of the
drop), and a batch in flight may still be reading from it. Only when both are over is the block granted
again; spare blocks let a replacement start meanwhile.

Examples
--------
>>> table = LeaseTable(
...     train_blocks=2, eval_blocks=0, spare_blocks=1, groups=2, envs=8, fingerprint="f", lease_seconds=30
... )
>>> first = table.register(Registration("train", 1, 0, "f", 2, 8), now=0.0)
>>> first.lease.env_ids
range(16, 32)
>>> table.register(Registration("train", 1, 0, "f", 2, 8), now=1.0).reason
'generation 0 of train actor 1 is already connected'
>>> table.register(Registration("train", 1, 1, "f", 2, 8), now=2.0).superseded == first.lease
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from seedflow.rpc.decisions import (
    DroppedLease,
    Ending,
    GrantedLease,
    Lease,
    LeaseCounts,
    Refusal,
    RefusedLease,
    Role,
)

__all__ = [
    "DroppedLease",
    "Ending",
    "GrantedLease",
    "Lease",
    "LeaseCounts",
    "LeaseTable",
    "RefusedLease",
    "Refusal",
    "Registration",
    "Role",
]


@dataclass(frozen=True)
class Registration:
    """What an actor says of itself.

    Attributes
    ----------
    role
        ``train``, or ``eval`` for an actor whose steps are never trained on.
    index
        Number of the actor among those of its role; its environments' ids follow from it.
    generation
        Incarnation of this index; a restart has a higher one.
    fingerprint
        `EnvSpec.fingerprint` of the actor's environments.
    groups, envs
        Groups, and environments of a group, that the actor steps. Those of a training actor are the
        layout's; an evaluation actor may have fewer.
    """

    role: Role
    index: int
    generation: int
    fingerprint: str
    groups: int
    envs: int

    @property
    def name(self) -> str:
        """How messages call this actor."""
        return f"{self.role} actor {self.index}"


@dataclass
class _Record:
    lease: Lease
    seen: float
    idle_since: float  # when its last group in flight was answered
    active: bool = True
    writer_gone: bool = False
    holds: int = 0
    in_flight: set[int] = field(default_factory=set)
    fresh: set[int] = field(default_factory=set)  # groups that have not rung yet


class LeaseTable:
    """Grants, drops and quarantines leases.

    Parameters
    ----------
    train_blocks, eval_blocks
        Training and evaluation actors at most; an index at or above is refused.
    spare_blocks
        Blocks beyond these, so that actors can be replaced while blocks are in quarantine.
    groups, envs
        Layout of a block.
    fingerprint
        `EnvSpec.fingerprint` of the run.
    lease_seconds
        A lease from which nothing is heard for so long is dropped.

    Attributes
    ----------
    lease_seconds, blocks
        These seconds, and how many blocks there are.
    """

    def __init__(
        self,
        train_blocks: int,
        eval_blocks: int,
        spare_blocks: int,
        groups: int,
        envs: int,
        fingerprint: str,
        lease_seconds: float,
    ) -> None:
        self._limits: dict[Role, int] = {"train": train_blocks, "eval": eval_blocks}
        self._groups, self._envs = groups, envs
        self._fingerprint = fingerprint
        self.lease_seconds = lease_seconds
        self.blocks = train_blocks + eval_blocks + spare_blocks
        self._free = list(reversed(range(self.blocks)))
        self._records: dict[int, _Record] = {}
        self._active: dict[tuple[Role, int], _Record] = {}
        self._newest: dict[tuple[Role, int], int] = {}
        self._granted = self._restarts = 0
        self._refusals: Counter[Refusal] = Counter()
        self._endings: Counter[Ending] = Counter()
        self._slowest = 0.0

    def register(self, registration: Registration, now: float) -> GrantedLease | RefusedLease:
        """Decide on a registration whose token has been checked.

        A higher generation of an index takes over at once. If every block is in use or in quarantine it
        supersedes the older one all the same and is refused as retryable, until the older one has left.
        """
        if wrong := self._mismatch(registration):
            return self._refuse("mismatch", wrong)
        limit = self._limits[registration.role]
        if registration.index >= limit:
            full = f"full: no room for {registration.name}, indices must be below {limit} (rollout.max_envs)"
            return self._refuse("full", full)
        key = (registration.role, registration.index)
        older = self._active.get(key)
        superseded = None
        if older is not None:
            if registration.generation <= older.lease.generation:
                connected = f"generation {older.lease.generation} of {registration.name} is already connected"
                if registration.generation == older.lease.generation:
                    return self._refuse("duplicate", connected)
                newer = f"which is newer than generation {registration.generation}"
                return self._refuse("stale", f"{connected}, {newer}")
            superseded = older.lease
            self.drop(superseded.id, "superseded", "superseded")
        if not self._free:
            return self._refuse(
                "full",
                f"full: all {self.blocks} blocks are in use or wait for an earlier actor to leave",
                superseded,
            )
        return GrantedLease(self._grant(registration, now), superseded)

    def ring(self, lease_id: int, group: int, now: float, all_first: bool) -> DroppedLease | None:
        """A group's request is written.

        Parameters
        ----------
        lease_id, group
            Who rang. A lease that is no longer active is ignored.
        all_first
            Whether ``first`` is set on all of its rows; looked at only where `fresh` is true.

        Returns
        -------
        DroppedLease or None
            Set where the actor broke the protocol and its lease has therefore been dropped.
        """
        record = self._records.get(lease_id)
        if record is None or not record.active:
            return None
        record.seen = now
        if group >= record.lease.groups:
            return self.drop(lease_id, f"rang for group {group} of {record.lease.groups}")
        if group in record.in_flight:
            return self.drop(lease_id, f"rang for group {group} while its request was in flight")
        if group in record.fresh:
            if not all_first:
                return self.drop(
                    lease_id,
                    f"the first request of group {group} does not begin with a reset of every environment",
                )
            record.fresh.discard(group)
        record.in_flight.add(group)
        return None

    def fresh(self, lease_id: int, group: int) -> bool:
        """Whether a group has not rung since its lease was granted: its first request must be a reset."""
        record = self._records.get(lease_id)
        return record is not None and group in record.fresh

    def reply(self, lease_id: int, group: int, now: float) -> bool:
        """A group's actions are written. Returns whether its lease is still active, so whether to ring.

        Raises
        ------
        ValueError
            If an active group has no request in flight.
        """
        record = self._records.get(lease_id)
        if record is None or not record.active:
            return False
        if group not in record.in_flight:
            raise ValueError(
                f"group {group} of lease {lease_id} has no request in flight: nothing to reply to"
            )
        record.in_flight.discard(group)
        if not record.in_flight:
            record.idle_since = now
        return True

    def heartbeat(self, lease_id: int, now: float) -> None:
        """The actor is alive."""
        record = self._records.get(lease_id)
        if record is not None:
            record.seen = now

    def drop(self, lease_id: int, reason: str, ending: Ending = "protocol") -> DroppedLease | None:
        """End a lease; its block goes into quarantine. None if it is not active any more."""
        record = self._records.get(lease_id)
        if record is None or not record.active:
            return None
        record.active = False
        del self._active[(record.lease.role, record.lease.index)]
        self._endings[ending] += 1
        self._forget_if_unused(record)
        return DroppedLease(record.lease, reason, ending)

    def writer_gone(
        self, lease_id: int, reason: str = "the actor closed its connection"
    ) -> DroppedLease | None:
        """Nobody writes into the lease's block any more; drops the lease if it was active."""
        record = self._records.get(lease_id)
        if record is None:
            return None
        record.writer_gone = True
        if record.active:
            return self.drop(lease_id, reason, "closed")
        self._forget_if_unused(record)
        return None

    def hold(self, lease_ids: Iterable[int]) -> None:
        """A batch reads rows of these leases: none of their blocks is granted again before `release`.

        Raises
        ------
        KeyError
            If a lease's block has been given up already; a batch is made of leases not reported closed.
        """
        records = [self._records[lease_id] for lease_id in lease_ids]
        for record in records:
            record.holds += 1

    def release(self, lease_ids: Iterable[int]) -> None:
        """Undo one `hold` of each of these leases."""
        for lease_id in lease_ids:
            record = self._records[lease_id]
            if record.holds == 0:
                raise ValueError(f"lease {lease_id} is released more often than it was held")
            record.holds -= 1
            self._forget_if_unused(record)

    def tick(self, now: float) -> list[DroppedLease]:
        """Drop the leases from which nothing was heard for too long."""
        silent = [r.lease.id for r in self._active.values() if now - r.seen > self.lease_seconds]
        reason = f"nothing was heard from the actor for {self.lease_seconds:g} s (inference.lease_seconds)"
        dropped = [self.drop(lease_id, reason, "silent") for lease_id in silent]
        idle = [r for r in self._active.values() if not r.in_flight]
        self._slowest = max((now - r.idle_since for r in idle), default=0.0)
        return [gone for gone in dropped if gone is not None]

    def due(self, now: float, margin: float) -> list[Lease]:
        """The active leases that `tick` would drop within `margin` seconds."""
        limit = self.lease_seconds - margin
        return [record.lease for record in self._active.values() if now - record.seen > limit]

    def forgive(self, seconds: float) -> None:
        """The learner itself stood still for so long: nobody could be heard, so nobody was silent."""
        for record in self._active.values():
            record.seen += seconds
            record.idle_since += seconds

    def refused(self, cause: Refusal) -> None:
        """Count a registration that was refused before it came here."""
        self._refusals[cause] += 1

    def active(self) -> list[Lease]:
        """All active leases, oldest first."""
        return sorted((record.lease for record in self._active.values()), key=lambda lease: lease.id)

    def counts(self) -> LeaseCounts:
        """Counters and gauges, for the metrics."""
        active = len(self._active)
        quarantined = len(self._records) - active
        causes = dict(self._refusals), dict(self._endings), self._slowest
        return LeaseCounts(active, quarantined, len(self._free), self._granted, self._restarts, *causes)

    def _mismatch(self, registration: Registration) -> str:
        """What of a registration contradicts the run; empty if nothing does."""
        wrong = []
        if registration.fingerprint != self._fingerprint:
            has_print = registration.fingerprint[:64]
            wrong.append(f"environment fingerprint {has_print!a} (expected {self._fingerprint!a})")
        training = registration.role == "train"
        for what, has, wants in (
            ("groups", registration.groups, self._groups),
            ("envs per group", registration.envs, self._envs),
        ):
            if has < 1 or has > wants or (training and has != wants):
                wrong.append(f"{what} {has} (expected {'' if training else '1 to '}{wants})")
        if not wrong:
            return ""
        return (
            f"{registration.name} does not fit this run: {', '.join(wrong)}; "
            "start it with the run's own configuration and the same environment versions"
        )

    def _grant(self, registration: Registration, now: float) -> Lease:
        start = registration.index * self._groups * self._envs
        groups, envs = registration.groups, registration.envs
        env_ids = range(start, start + groups * envs)
        who = (registration.role, registration.index, registration.generation)
        lease = Lease(self._granted, self._free.pop(), *who, env_ids, groups, envs)
        self._granted += 1
        key = (lease.role, lease.index)
        if lease.role == "train" and lease.generation > self._newest.get(key, 0):
            self._restarts += 1
        self._newest[key] = max(lease.generation, self._newest.get(key, 0))
        record = _Record(lease, now, now, fresh=set(range(lease.groups)))
        self._records[lease.id] = self._active[key] = record
        return lease

    def _refuse(self, cause: Refusal, reason: str, superseded: Lease | None = None) -> RefusedLease:
        self._refusals[cause] += 1
        return RefusedLease(reason, cause == "full", superseded)

    def _forget_if_unused(self, record: _Record) -> None:
        if not record.active and record.writer_gone and record.holds == 0:
            del self._records[record.lease.id]
            self._free.append(record.lease.block)

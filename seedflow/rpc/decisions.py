"""What a lease table decides, and how often it did.

Examples
--------
>>> counts = LeaseCounts(active=1, quarantined=0, free=2, granted=3, restarts=1)
>>> counts.metrics()["lease/registrations"], counts.metrics()["lease/refused_token"]
(3, 0)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

Role = Literal["train", "eval"]

Refusal = Literal["token", "version", "mismatch", "duplicate", "stale", "full"]
"""Why a registration is refused.

``token``: it does not prove that it belongs to the run. ``version``: another protocol. ``mismatch``: other
arrays or sizes. ``duplicate``: this generation of the actor is connected; ``stale``: a newer one is.
``full``: no room now.
"""

Ending = Literal["closed", "silent", "protocol", "unread", "superseded"]
"""Why a lease ends.

``closed``: its connection ended. ``silent``: nothing was heard for too long. ``protocol``: a message that is
none, or that came out of turn. ``unread``: the actor does not read its replies. ``superseded``: a newer
generation took over.
"""


@dataclass(frozen=True)
class Lease:
    """The right of one actor to write into one block.

    Attributes
    ----------
    id
        Unique within the life of a table; never used again.
    block
        Index of the block in the slab.
    role, index, generation, groups, envs
        As registered.
    env_ids
        Ids of the environments, ``groups * envs`` of them; group g has ``env_ids[g*envs : (g+1)*envs]``.
        Training and evaluation ids are counted apart.
    """

    id: int
    block: int
    role: Role
    index: int
    generation: int
    env_ids: range
    groups: int
    envs: int

    @property
    def name(self) -> str:
        """How messages call its owner."""
        return f"{self.role} actor {self.index}"


@dataclass(frozen=True)
class GrantedLease:
    """Instruction: hand out `lease`; tell the owner of `superseded`, if any, to exit."""

    lease: Lease
    superseded: Lease | None = None


@dataclass(frozen=True)
class RefusedLease:
    """Instruction: refuse with `reason`; tell the owner of `superseded`, if any, to exit."""

    reason: str
    retryable: bool
    superseded: Lease | None = None


@dataclass(frozen=True)
class DroppedLease:
    """Instruction: `lease` is over; tell its owner why and wait for it to go."""

    lease: Lease
    reason: str
    ending: Ending


@dataclass(frozen=True)
class LeaseCounts:
    """Counters and gauges of a table.

    ``active + quarantined + free`` is the number of blocks; ``granted`` is ``active + dropped``.

    Attributes
    ----------
    active, quarantined, free
        Blocks by state.
    granted
        Registrations that got a lease.
    restarts
        Grants to a training actor of a generation above 0 that was not seen before.
    refusals, endings
        Registrations that got none, and leases that ended, by cause.
    slowest_seconds
        How long the slowest actor has let the learner wait: none of its groups has a request in flight.
    """

    active: int
    quarantined: int
    free: int
    granted: int
    restarts: int
    refusals: Mapping[Refusal, int] = field(default_factory=dict)
    endings: Mapping[Ending, int] = field(default_factory=dict)
    slowest_seconds: float = 0.0

    @property
    def refused(self) -> int:
        """Registrations that got no lease."""
        return sum(self.refusals.values())

    @property
    def dropped(self) -> int:
        """Leases that ended, for whatever reason."""
        return sum(self.endings.values())

    @property
    def registrations(self) -> int:
        """Registrations decided so far."""
        return self.granted + self.refused

    def metrics(self) -> dict[str, float]:
        """All of it, by metric name."""
        return {
            "lease/active": self.active,
            "lease/quarantined": self.quarantined,
            "lease/registrations": self.granted,
            "lease/dropped": self.dropped,
            "lease/refused": self.refused,
            "lease/slowest_seconds": self.slowest_seconds,
            "actor/restarts": self.restarts,
            **{f"lease/refused_{cause}": self.refusals.get(cause, 0) for cause in get_args(Refusal)},
            **{f"lease/dropped_{cause}": self.endings.get(cause, 0) for cause in get_args(Ending)},
        }

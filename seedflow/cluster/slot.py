"""What the driver knows of one role of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from seedflow.actor.start import Obituary
from seedflow.cluster.launch import RoleId, RoleResult
from seedflow.cluster.placement import Place
from seedflow.cluster.status import RoleState, RoleStatus


@dataclass(frozen=True)
class Submit:
    """Start a role."""

    role: RoleId
    generation: int
    place: Place
    before: Obituary | None = None
    """How the generation before ended, if it could not tell the learner itself."""


@dataclass(frozen=True)
class Cancel:
    """Cancel the task of a role's start; its supervisor then ends the role."""

    role: RoleId
    generation: int


@dataclass(frozen=True)
class Announce:
    """Tell the supervisors on some workers where the learner is."""

    workers: frozenset[str]


Command = Submit | Cancel | Announce


@dataclass(frozen=True)
class Found:
    """A start of a role that a new driver has found on the cluster.

    Attributes
    ----------
    started
        What its supervisor told at its begin: host, process id and log.
    endpoint
        What a learner has told of where it is, with its attempt.
    running
        Whether it has told that it is up.
    """

    role: RoleId
    generation: int
    attempt: str
    place: Place
    started: Mapping[str, Any] | None
    endpoint: Mapping[str, Any] | None
    running: bool


@dataclass
class Slot:
    """One role: its latest start, and what became of it.

    Attributes
    ----------
    told
        Generation of the learner of which the role has heard.
    """

    role: RoleId
    grace: float
    generation: int = 0
    state: RoleState = "waiting"
    place: Place | None = None
    attempt: str | None = None
    host: str | None = None
    pid: int | None = None
    log_path: str | None = None
    result: RoleResult | None = None
    not_before: float = 0.0
    end_by: float = math.inf
    lost_at: float = -math.inf
    before: Obituary | None = None
    told: int = 0

    @property
    def live(self) -> bool:
        return self.state in ("submitted", "starting", "running", "stopping")

    @property
    def worker(self) -> str | None:
        return self.place.worker if self.place else None

    def status(self) -> RoleStatus:
        return RoleStatus(
            self.role, self.generation, self.state, self.worker, self.host, self.pid, self.log_path
        )

    def begin(self, place: Place, told: int) -> Submit:
        """Start it there."""
        self.state, self.place, self.attempt, self.told = "submitted", place, None, told
        self.host, self.pid, self.log_path = None, None, None
        before, self.before = self.before, None
        return Submit(self.role, self.generation, place, before)

    def next_generation(self, now: float, delay: float) -> Cancel:
        """Wait for another start; what is left of this one is to be cancelled."""
        cancel = Cancel(self.role, self.generation)
        self.generation += 1
        self.state, self.not_before = "waiting", now + delay
        return cancel

    def adopt(self, found: Found) -> None:
        """Take over a start that another driver has made."""
        self.generation, self.place, self.attempt = found.generation, found.place, found.attempt
        self.state = "running" if found.running else "starting" if found.started else "submitted"
        if found.started is not None:
            self.host, self.pid = str(found.started["host"]), int(found.started["pid"])
            self.log_path = str(found.started["log_path"])

"""What a driver can say about its run at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from seedflow.cluster.launch import RoleId

RoleState = Literal["waiting", "submitted", "starting", "running", "stopping", "ended"]
"""waiting: for a place or the end of a delay; submitted: its task waits on its worker."""

Phase = Literal["placing", "starting", "running", "finishing", "stopping", "ended"]
"""placing: waits for workers; starting: for the learner; finishing: the learner is done.

A run whose learner was lost is placing again, then starting; its actors wait meanwhile.
"""


@dataclass(frozen=True)
class RoleStatus:
    """One role, as last heard of."""

    role: RoleId
    generation: int
    state: RoleState
    worker: str | None = None
    host: str | None = None
    pid: int | None = None
    log_path: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run, as last heard of.

    Attributes
    ----------
    restarts
        Actors started again so far, for whatever reason.
    learner_restarts
        How often the learner was lost and placed again.
    metrics
        The learner's latest.
    error
        Why the run failed, or None.
    """

    run_id: str
    phase: Phase
    roles: tuple[RoleStatus, ...]
    restarts: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    learner_restarts: int = 0

    @property
    def learner(self) -> RoleStatus:
        return self.roles[0]

    @property
    def actors(self) -> tuple[RoleStatus, ...]:
        """Training actors."""
        return tuple(role for role in self.roles if role.role.kind == "actor")

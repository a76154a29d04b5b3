"""A roster of a run, and what it hears, without a cluster."""

from __future__ import annotations

from typing import Any

from seedflow.cluster.launch import Note, RoleId, RoleResult
from seedflow.cluster.placement import WorkerInfo
from seedflow.cluster.roster import Roster
from seedflow.config import Config

LEARNER, ACTOR, OTHER = RoleId("learner"), RoleId("actor", 0), RoleId("actor", 1)
WORKERS = [WorkerInfo(f"tcp://10.0.0.{n}:4000", f"10.0.0.{n}") for n in range(3)]
CONFIG = Config.model_validate(
    {
        "actor": {"count": 2, "stop_seconds": 10, "max_restarts": 3, "restart_window_seconds": 100},
        "cluster": {"worker_seconds": 60, "learner_seconds": 120, "stop_seconds": 20},
    }
)


def note(role: RoleId, generation: int, kind: Any, attempt: str = "a", /, **content: Any) -> Note:
    return Note("run", role, generation, attempt, kind, content)


def started(role: RoleId, generation: int = 0, attempt: str = "a") -> Note:
    return note(role, generation, "started", attempt, host=f"host of {role}", pid=1, log_path=f"{role}.log")


def endpoint(generation: int = 0, gateway: str = "10.0.0.0:5") -> Note:
    return note(LEARNER, generation, "message", kind="endpoint", endpoint={"gateway": gateway})


def running(now: float = 0.0) -> Roster:
    """A roster of a run whose learner and actors are up."""
    roster = Roster(CONFIG, now)
    roster.see_workers(WORKERS, now)
    roster.advance(now)
    roster.heard(started(LEARNER), now)
    roster.heard(endpoint(), now)
    roster.advance(now)
    for role in (ACTOR, OTHER):
        roster.heard(started(role), now)
        roster.heard(note(role, 0, "message", kind="state", state="running"), now)
    roster.advance(now)
    return roster


def state(roster: Roster, role: RoleId) -> tuple[str, int]:
    status = next(status for status in roster.roles() if status.role == role)
    return status.state, status.generation


def crashed(text: str = "boom", retryable: bool = True) -> RoleResult:
    failed = {"exception": "ValueError", "message": text, "traceback": "where", "retryable": retryable}
    return RoleResult("ended", 1, failed=failed, host="node", log_path="node.log")

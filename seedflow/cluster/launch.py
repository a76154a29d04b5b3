"""What the driver and a role's supervisor tell each other.

Down goes a `Launch`, inside the Dask task; up come `Note`s, as events of the scheduler's topic that is
named by the driver's connection, and at the end the `RoleResult`, as the last note and as the task's result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Kind = Literal["learner", "actor", "eval"]
NoteKind = Literal["started", "message", "log", "ended"]


@dataclass(frozen=True, order=True)
class RoleId:
    """The learner, an actor or the evaluation actor of a run."""

    kind: Kind
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind}-{self.index}"

    @property
    def start_role(self) -> str:
        """The role's word in its start message."""
        return "train" if self.kind == "actor" else self.kind


def task_key(run: str, role: RoleId, generation: int) -> str:
    """Name of the Dask task of a role's start."""
    return f"seedflow-{run}-{role}-g{generation}"


@dataclass(frozen=True)
class Launch:
    """One start of one role.

    Attributes
    ----------
    run
        Id of the run.
    generation
        Counts the starts of this role; no two starts share one.
    module
        Run as ``python -m module``.
    start
        The role's start message. It holds the run's token, and maybe the user's pickled environment,
        which only the role unpickles; so it is in no repr.
    worker
        Address of the worker that the driver chose.
    topic
        Where the driver listens.
    log_path
        Log of the role, on the worker's host.
    threads
        OpenMP and BLAS threads of the role; None: all cores of the host.
    grace
        Seconds between the request to stop and the kill.
    gpu
        Whether the role may see the GPUs of its worker.
    keep_log
        Whether a log that was sent to the driver stays on the host as well: the driver may not be there.
    resources
        What the task holds of its worker.
    """

    run: str
    role: RoleId
    generation: int
    module: str
    start: Mapping[str, Any] = field(repr=False)
    worker: str
    topic: str
    log_path: str
    threads: int | None
    grace: float
    gpu: bool = True
    keep_log: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name of the Dask task."""
        return task_key(self.run, self.role, self.generation)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Launch:
        fields = json.loads(text)
        return cls(**{**fields, "role": RoleId(**fields["role"])})


@dataclass(frozen=True)
class RoleResult:
    """How one start of a role ended.

    Attributes
    ----------
    outcome
        ``ended``: by itself. ``stopped``: on request, since its task was cancelled. ``left``: its worker
        leaves the cluster. ``lost``: with its worker, or its task was dropped. ``broken``: it could not
        be started or supervised.
    exit_code
        128 + n after signal n; None if there was no process.
    done
        Reason of the role's ``done`` message, if it sent one.
    failed
        The role's ``failed`` message, if it sent one.
    doing
        Which call of an environment an actor was making at its end.
    hung
        Why it was ended, if that was because it went on no more.
    crash
        What faulthandler wrote about a crash: the stacks of all threads.
    """

    outcome: Literal["ended", "stopped", "left", "lost", "broken"]
    exit_code: int | None = None
    done: str | None = None
    failed: Mapping[str, Any] | None = None
    log_tail: str = ""
    host: str = ""
    log_path: str = ""
    doing: str = ""
    hung: str = ""
    crash: str = ""


@dataclass(frozen=True)
class Note:
    """What a supervisor tells the driver.

    Attributes
    ----------
    attempt
        Random name of this run of the task: another one for the same generation means that Dask has
        run the task again.
    kind
        ``started`` (content: host, pid, log_path), ``message`` (content: the role's own message), ``log``
        (content: text that it has written, where the driver does not see the file) or ``ended`` (content: the
        fields of a `RoleResult`).
    """

    run: str
    role: RoleId
    generation: int
    attempt: str
    kind: NoteKind
    content: Mapping[str, Any]

    def to_event(self) -> dict[str, Any]:
        return {"seedflow": asdict(self)}

    @classmethod
    def from_event(cls, event: Any, run: str) -> Note | None:
        """The note in an event of the topic, if it is one of this run."""
        fields = event.get("seedflow") if isinstance(event, dict) else None
        if fields is None or fields["run"] != run:
            return None
        return cls(**{**fields, "role": RoleId(**fields["role"])})

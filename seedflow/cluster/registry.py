"""The roles that live on one worker, for drivers to ask for and to talk to.

A supervisor enters its role here, in the memory of its worker, for as long as the role lives. A driver
reaches the entries by Dask's ``Client.run``: to tell actors where the learner is after it was placed again,
and, where it takes over from a driver that has died, to learn what there is (`adopt_roles`). So what a new
driver goes on with is what lives, not what somebody has written down about it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from seedflow.cluster.launch import Launch


@dataclass
class LiveRole:
    """A role on this worker.

    Attributes
    ----------
    topic
        Where its supervisor tells what happens.
    attempt
        Random name of this run of its task.
    endpoint
        Where its learner is, with the learner's generation, once a driver has said so.
    started, learner_at, state
        The last of what it has told of each: how it began, its ``endpoint`` message, its state.
    """

    launch: Launch
    attempt: str
    topic: str
    endpoint: tuple[int, Mapping[str, Any]] | None = None
    started: Mapping[str, Any] | None = None
    learner_at: Mapping[str, Any] | None = None
    state: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_endpoint(self) -> Mapping[str, Any] | None:
        """What a driver has said since the last call."""
        with self.lock:
            said, self.endpoint = self.endpoint, None
        return None if said is None else said[1]

    def describe(self) -> dict[str, Any]:
        """All that a new driver needs to know."""
        return {
            "launch": self.launch.to_json(),
            "attempt": self.attempt,
            "started": self.started,
            "learner_at": self.learner_at,
            "running": self.state == "running",
        }


_live: dict[str, LiveRole] = {}  # by the attempt
_lock = threading.Lock()


@contextmanager
def entered(role: LiveRole) -> Iterator[LiveRole]:
    """Keep a role in the list until the end of the block."""
    with _lock:
        _live[role.attempt] = role
    try:
        yield role
    finally:
        with _lock:
            del _live[role.attempt]


def tell_endpoint(run: str, generation: int, endpoint: Mapping[str, Any]) -> int:
    """On a worker: hand the learner's endpoint to every actor of a run; returns how many there are.

    Parameters
    ----------
    generation
        Of the learner. An older one than was told before is ignored.
    """
    actors = [role for role in _of(run) if role.launch.role.kind != "learner"]
    for role in actors:
        with role.lock:
            if role.endpoint is None or role.endpoint[0] <= generation:
                role.endpoint = generation, endpoint
    return len(actors)


def adopt_roles(run: str, topic: str) -> list[dict[str, Any]]:
    """On a worker: what roles of a run live here; from now on they tell what happens at `topic`."""
    roles = _of(run)
    for role in roles:
        role.topic = topic
    return [role.describe() for role in roles]


def _of(run: str) -> list[LiveRole]:
    with _lock:
        return [role for role in _live.values() if role.launch.run == run]

"""How often, and how soon, a role that failed is started again."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from seedflow.cluster.launch import RoleId

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
OF_OTHERS = frozenset({"ConnectionLost", "RegistrationRefused", "TransportError", "TrainingFailed"})
"""Exceptions that speak of another process; the same one again is no sign of a fault here."""


class RestartPolicy:
    """Counts failures of one kind of role in a sliding window; no clock of its own.

    A role is started again with a delay that doubles with each of its failures in the window. It is given
    up if all roles together have failed more than `limit` times in the window, or if one role has failed
    with the same exception text twice in it.

    Examples
    --------
    >>> policy = RestartPolicy(limit=2, window=60.0)
    >>> actor = RoleId("actor", 0)
    >>> policy.failed(actor, None, now=0.0), policy.failed(actor, None, now=1.0)
    (0.5, 1.0)
    >>> policy.failed(actor, None, now=2.0)
    '3 failures of actors within 60 s, more than actor.max_restarts = 2'
    """

    def __init__(self, limit: int, window: float, kind: Literal["actor", "learner"] = "actor") -> None:
        self.limit = limit
        self._whose = "actors" if kind == "actor" else "the learner"
        self._setting = f"{kind}.max_restarts"
        self.window = window
        self._failures: deque[tuple[float, RoleId, str | None]] = deque()

    def failed(self, role: RoleId, text: str | None, now: float) -> float | str:
        """Take note of a failure; the delay of the restart in seconds, or why there is none.

        Parameters
        ----------
        text
            Text of the exception; None where there was none (a signal).
        """
        while self._failures and self._failures[0][0] <= now - self.window:
            self._failures.popleft()
        repeated = text is not None and any(
            (other, seen) == (role, text) for _, other, seen in self._failures
        )
        self._failures.append((now, role, text))
        if repeated:
            return f"{role} failed with the same exception twice within {self.window:g} s"
        if len(self._failures) > self.limit:
            return (
                f"{len(self._failures)} failures of {self._whose} within {self.window:g} s, "
                f"more than {self._setting} = {self.limit}"
            )
        own = sum(other == role for _, other, _ in self._failures)
        return float(min(FIRST_DELAY * 2 ** (own - 1), LONGEST_DELAY))


def speaks_of_others(failed: Mapping[str, Any] | None) -> bool:
    """Whether a role failed by no fault of its own, as an actor that looked for its learner in vain."""
    return failed is not None and failed.get("exception") in OF_OTHERS


def exception_text(failed: Mapping[str, Any] | None) -> str | None:
    """What identifies an exception: its type and identity; None if it speaks of somebody else."""
    if failed is None or speaks_of_others(failed):
        return None
    message = failed.get("identity", failed.get("message"))
    if message is None:
        lines = [line for line in str(failed.get("traceback", "")).splitlines() if line.strip()]
        message = lines[-1].strip() if lines else ""
    return f"{failed.get('exception')}: {message}"

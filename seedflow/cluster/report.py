"""How the end of a role is put into words."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from seedflow.actor.start import Obituary
from seedflow.cluster.launch import RoleId, RoleResult
from seedflow.errors import (
    CheckpointConflict,
    CheckpointDamaged,
    CheckpointError,
    ConfigError,
    PlacementError,
    RunFailed,
    SeedflowError,
)

REFUSALS = {error.__name__ for error in (CheckpointError, CheckpointDamaged, CheckpointConflict)}

OBITUARY_CHARACTERS = 6000


@dataclass(frozen=True)
class Failure:
    """Why a run ends before its learner is done.

    Attributes
    ----------
    headline
        One sentence.
    role, generation, worker
        The role that the headline speaks of, if it speaks of one.
    placement
        Whether the roles could not be placed at all.
    cause
        The exception in the driver, if that is what went wrong.
    """

    headline: str
    role: RoleId | None = None
    generation: int = 0
    worker: str | None = None
    placement: bool = False
    cause: BaseException | None = None


def describe(result: RoleResult, worker: str | None = None) -> str:
    """What became of a role, as the rest of a sentence."""
    if result.outcome == "left":
        return f"was stopped, since its worker {worker} leaves the cluster"
    if result.outcome == "lost":
        return f"was lost with its worker {worker}"
    if result.outcome == "stopped":
        return "was stopped: somebody cancelled its task"
    if result.hung:
        return f"was killed, since {result.hung}"
    if result.failed is not None:
        message = str(result.failed.get("message") or "").partition("\n")[0]
        return f"failed with {result.failed.get('exception')}" + (f": {message}" if message else "")
    if result.exit_code is not None and result.exit_code > 128:
        number = result.exit_code - 128
        known = number in {item.value for item in signal.Signals}
        name = signal.Signals(number).name if known else f"signal {number}"
        return f"was killed by {name}" + (f" in {result.doing}" if result.doing else "")
    if result.exit_code == 0:
        return f"ended by itself ({result.done or 'no reason given'})"
    return f"ended with exit code {result.exit_code} and without an exception"


def describe_late(worker: str | None, begun: bool, seconds: float) -> str:
    """Why a learner that was not up in time may not have been."""
    if begun:
        return (
            f"the learner was not ready within {seconds:g} s (cluster.learner_seconds); "
            "its log shows how far it came"
        )
    return (
        f"the learner's task has not begun on worker {worker} within {seconds:g} s "
        "(cluster.learner_seconds): other tasks hold the worker's threads or the "
        "resource; use a worker that is free, or wait longer"
    )


def obituary(result: RoleResult, what: str, generation: int) -> Obituary | None:
    """What the next generation of an actor tells the learner about one that could not tell itself.

    None where it could, or where it ended in order.
    """
    if result.outcome != "ended" or result.failed is not None or result.exit_code in (0, None):
        return None
    text = f"generation {generation}: {what}" + (f"\n{result.crash}" if result.crash else "")
    return Obituary(text[:OBITUARY_CHARACTERS], "hung" if result.hung else "crashed")


def error_of(failure: Failure, result: RoleResult | None, log_path: str | None) -> SeedflowError:
    """The exception of a failed run: headline, where to look, the remote traceback or end of the log.

    What the learner refuses before it is up, a device or a checkpoint, say, needs no traceback.
    """
    if failure.placement:
        return PlacementError(failure.headline)
    lines = [failure.headline]
    failed = result.failed if result is not None and result.failed is not None else {}
    refused = None
    if failure.role is not None:
        host = result.host if result is not None and result.host else "unknown"
        log = (result.log_path if result is not None else "") or log_path or "none was begun"
        refused = failed.get("exception") if failure.role.kind == "learner" else None
        if refused == ConfigError.__name__:
            return ConfigError(f"{failed.get('message')} (the learner, on {host}; its log is {log})")
        lines.append(f"  role: {failure.role}, generation {failure.generation}")
        lines.append(f"  host: {host} (worker {failure.worker})")
        lines.append(f"  log: {log}")
    if refused in REFUSALS:
        return RunFailed("\n".join(lines))
    if failed.get("traceback"):
        lines += ["", str(failed["traceback"]).rstrip()]
    elif result is not None and result.log_tail:
        lines += ["", "last lines of its log:", result.log_tail.rstrip()]
    return RunFailed("\n".join(lines))

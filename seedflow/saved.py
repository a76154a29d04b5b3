"""What a run has saved so far, and what to do with it, in words for the person who started it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from seedflow.checkpoints import Generations, open_store
from seedflow.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    RunFailed,
    RunStopped,
    SeedflowError,
)
from seedflow.metrics import MetricsError, column, read_metrics
from seedflow.run_dir import shown
from seedflow.run_record import RunRecord


@dataclass(frozen=True)
class Saved:
    """The newest checkpoint of a run: its generation, and the agent steps taken by then."""

    generation: int
    agent_steps: int

    @classmethod
    def newest(cls, directory: Path) -> Saved | None:
        """What the newest manifest that is whole says; None where there is none, or none that can be read."""
        checkpoints = Generations(open_store(directory / "checkpoints"))
        try:
            manifest = checkpoints.restore(lambda manifest: None).manifest
            return cls(manifest.generation, int(manifest.state["progress"]["agent_steps"]))
        except (CheckpointError, KeyError, TypeError, ValueError):
            return None


@contextmanager
def last_words(tell: Callable[[str], None], directory: Path, total_steps: int) -> Iterator[None]:
    """Say, once the block has ended, what the run has saved and how to use it.

    Parameters
    ----------
    tell
        Takes the line. Where an exception ends the block that people get to see anyway, the line becomes a
        note of it.
    directory
        Of the run.
    total_steps
        Agent steps at which the run is complete.
    """
    try:
        yield
    except BaseException as error:
        words = describe(directory, total_steps)
        if isinstance(error, KeyboardInterrupt):
            error.add_note(words or "It has saved no checkpoint.")
        elif words is not None and isinstance(error, RunFailed | RunStopped | EnvironmentFault):
            error.add_note(words)
        elif words is not None and not isinstance(error, SeedflowError):
            tell(words)
        raise
    if (words := describe(directory, total_steps)) is not None:
        tell(words)


def describe(directory: Path, total_steps: int) -> str | None:
    """What a run has saved, and how to evaluate it or go on with it; None where no checkpoint is."""
    saved = Saved.newest(directory)
    if saved is None:
        return None
    place = f"checkpoint {saved.generation} in {shown(directory) / 'checkpoints'}"
    if saved.agent_steps < total_steps:
        how = how_to_resume(directory)
        return f"Saved {saved.agent_steps:,} of {total_steps:,} steps as {place}; go on with: {how}"
    how = how_to_evaluate(directory)
    return f"Finished {saved.agent_steps:,} steps{_returns(directory)}, saved as {place}; evaluate: {how}"


def how_to_resume(directory: Path) -> str:
    """The command, or for a run made with `env_fn` the call, that goes on with a run."""
    path = str(shown(directory))
    if _has_env_fn(directory):
        return f"seedflow.train({path!r}, run_dir={path!r}, resume=True, env_fn=...)"
    return f"seedflow train --resume --run-dir {shlex.quote(path)}"


def how_to_evaluate(directory: Path) -> str:
    """The command, or for a run made with `env_fn` the call, that evaluates a run."""
    path = str(shown(directory))
    if _has_env_fn(directory):
        return f"seedflow.evaluate({path!r}, env_fn=...)"
    return f"seedflow eval {shlex.quote(path)}"


def _has_env_fn(directory: Path) -> bool:
    try:
        return RunRecord.read(directory).env_fn is not None
    except ConfigError:
        return False


def _returns(directory: Path) -> str:
    """Mean return of the training episodes in the last record that has one."""
    try:
        _, returns = column(read_metrics(directory), "episode/return")
    except (MetricsError, OSError):
        return ""
    return f", mean return {returns[-1]:.4g} of the last episodes" if len(returns) else ""

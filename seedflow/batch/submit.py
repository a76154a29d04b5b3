"""Submitting a script, or a chain of jobs of which each goes on where the one before was stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

from seedflow.batch.request import System
from seedflow.batch.script import SYSTEMS
from seedflow.errors import ConfigError, SeedflowError

SECONDS = 120.0


def submit(system: System, script: Path, chain: int = 1) -> list[str]:
    """Submit a script; returns the ids of its jobs.

    Parameters
    ----------
    chain
        Jobs. Each begins where the one before has not ended with success: at its time limit, for example.
        As soon as one has finished the run, the batch system drops the rest.

    Raises
    ------
    ConfigError
        If the batch system's command is not here.
    SeedflowError
        If it refuses; the message is its own.
    """
    module = SYSTEMS[system]
    ids: list[str] = []
    for _ in range(chain):
        command = module.submission(str(script), ids[-1] if ids else None)
        try:
            with script.open("rb") as text:
                done = subprocess.run(
                    command, stdin=text, capture_output=True, text=True, timeout=SECONDS, check=False
                )
        except FileNotFoundError:
            raise ConfigError(
                f"{command[0]} is not found on this host; submit {script} where it is, or look what is here "
                "with `seedflow doctor`"
            ) from None
        except subprocess.TimeoutExpired:
            raise SeedflowError(
                f"{command[0]} did not answer within {SECONDS:g} s; look whether it is up"
            ) from None
        found = module.job_id(done.stdout) if done.returncode == 0 else None
        if found is None:
            said = done.stderr.strip() or done.stdout.strip() or "it said nothing"
            submitted = f"; submitted before: {', '.join(ids)}" if ids else ""
            raise SeedflowError(f"{' '.join(command)} ended with code {done.returncode}: {said}{submitted}")
        ids.append(found)
    return ids

"""Learn an environment's spec without risking the process that asks.

Foreign code may crash the interpreter, hang, or leave processes behind. The probe therefore makes the
environment, resets it and steps it once in a child process, ``python -m seedflow.envs.probe``: one JSON
request on stdin, one JSON answer on stdout. What the environment prints goes to stderr, and its last lines
become part of the message when the child dies.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import IO, Any

import cloudpickle
import numpy as np

from seedflow import errors
from seedflow.config.tree import EnvConfig
from seedflow.envs.base import allocate_rows
from seedflow.envs.make import EnvFn, make_group
from seedflow.envs.seeding import env_seed
from seedflow.envs.shipped import shipped
from seedflow.envs.wrappers import parse_wrappers
from seedflow.errors import EnvironmentFault
from seedflow.specs import EnvSpec

STDERR_LINES = 20
"""Lines of the child's stderr that an error message shows."""


def probe_spec(
    env: EnvConfig, timeout: float = 120.0, env_fn: bytes | None = None, ship: bytes | None = None
) -> EnvSpec:
    """Spec of an environment, found out in a child process.

    Parameters
    ----------
    env
        The ``env`` section.
    timeout
        Seconds that importing, making, resetting and stepping it once may take together.
    env_fn
        A cloudpickled callable that makes one environment, in place of ``env.id``.
    ship
        Modules that it needs (`seedflow.envs.shipped.pack`).

    Raises
    ------
    ConfigError, SpecError, EnvironmentFault
        As `make_group` raises them. `EnvironmentFault` also if the environment raises, hangs, or ends
        the child; it shows the child's last lines.
    """
    parse_wrappers(env.wrappers)
    label = "env_fn" if env_fn is not None else f"env.id = {env.id!r}"
    request = {
        "parent": os.getpid(),
        "path": sys.path,
        "env": env.model_dump(mode="json"),
        "env_fn": None if env_fn is None else base64.b64encode(env_fn).decode(),
        "ship": None if ship is None else base64.b64encode(ship).decode(),
    }
    # Files instead of pipes: a process that the environment left behind would keep a pipe open.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(json.dumps(request).encode())
        stdin.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "seedflow.envs.probe"],
            stdin=stdin,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code: int | None = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_family(child)
        answer, said = _read(out), _last_lines(_read(err))
    if code is None:
        raise EnvironmentFault(
            f"{label} was not made, reset and stepped once within {timeout:g} s and was killed; "
            f"let it start faster, or look for what it waits for.{said}"
        )
    if code < 0:
        raise EnvironmentFault(f"{label} ended its process by {signal.Signals(-code).name}.{said}")
    try:
        result = json.loads(answer)
    except ValueError:
        raise EnvironmentFault(f"{label} ended its process with exit code {code}.{said}") from None
    if "spec" in result:
        return EnvSpec.from_json(result["spec"])
    if result["traceback"] is None:
        kind: type[errors.SeedflowError] = getattr(errors, result["kind"])
        raise kind(result["message"])
    raise EnvironmentFault(
        f"{label} raised {result['kind']} in its first steps: {result['message']}\n{result['traceback']}"
    )


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_lines(text: str) -> str:
    lines = text.strip().splitlines()[-STDERR_LINES:]
    return "\nIts last lines were:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _kill_family(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and every process of its session or below it, and reap the child."""
    for _ in range(10):  # again, for those that were born meanwhile
        family = _family(child.pid)
        for pid in family:
            with contextlib.suppress(ProcessLookupError):  # ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        child.kill()
        child.wait()
        if not family:
            break


def _family(leader: int) -> list[int]:
    """Ids of living processes in the session of `leader` or descended from it (Linux; else none)."""
    parents: dict[int, int] = {}
    family = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name in parentheses may hold spaces; state, parent, group and session follow it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if fields[0] == "Z":
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[1])
        if int(fields[3]) == leader:
            family.add(pid)
    size = -1
    while size != len(family):
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family or parent == leader}
    return sorted(family - {leader})


def spec_of(env: EnvConfig, env_fn: EnvFn | None = None) -> EnvSpec:
    """Make the environment, reset it and step it once, in this process."""
    with make_group(env, 1, [env_seed(0, "eval", 0, 0)], env_fn) as group:
        rows = allocate_rows(group.spec, 1)
        group.reset(rows)
        group.step(np.zeros(1, np.int64), rows)
        return group.spec


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    sys.path[:] = request["path"]
    env = EnvConfig.model_validate(request["env"])
    try:
        pickled, ship = request["env_fn"], request["ship"]
        with shipped(None if ship is None else base64.b64decode(ship)):
            env_fn = None if pickled is None else cloudpickle.loads(base64.b64decode(pickled))
            return {"spec": spec_of(env, env_fn).to_json()}
    except errors.SeedflowError as error:
        return {"kind": type(error).__name__, "message": str(error), "traceback": None}
    except Exception as error:
        return {"kind": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}


def main() -> None:
    """The child: read the request from stdin, write the answer to what was stdout."""
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        request = json.load(sys.stdin)
        if sys.platform == "linux":
            parent_death_signal = 1  # PR_SET_PDEATHSIG: the thread that waits for this process is its parent
            ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
        if os.getppid() != request["parent"]:
            return
        json.dump(_answer(request), answer)


if __name__ == "__main__":
    main()

"""Settings of scripted runs, and the means to look for what a run leaves behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from seedflow.config import Config
from seedflow.specs import ArraySpec, EnvSpec

MODULES = {"learner_module": "scripted_learner", "actor_module": "scripted_actor"}
SPEC = EnvSpec((ArraySpec("observation", (4,), np.dtype("float32")),), num_actions=2)
PATIENCE = 60.0


def make_config(script: dict[str, Any] | None = None, **sections: Any) -> Config:
    """Two scripted actors, with short graces."""
    tree: dict[str, Any] = {
        "env": {"kwargs": script or {}},
        "actor": {"count": 2, "stop_seconds": 4.0},
        "cluster": {"stop_seconds": 4.0, "worker_seconds": 60.0, "learner_seconds": 60.0},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values} if isinstance(values, dict) else values
    return Config.model_validate(tree)


def wait_for(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds:g} s"
        time.sleep(0.05)
    return value


def actor_pids(run_dir: Path, index: int = 0, generation: int = 0, role: str = "train") -> list[int]:
    """Process ids of an actor and its child, once it is up."""
    path = run_dir / f"{role}-{index}-g{generation}.up"
    wait_for(path.exists, f"{path.name}")
    return [int(word) for word in path.read_text().split()[:2]]


def processes_of(run_dir: Path) -> set[int]:
    """Every process id that a scripted role of this run has told."""
    pids = [int(word) for path in run_dir.glob("*.up") for word in path.read_text().split()[:2]]
    return {*pids, *(int(path.read_text() or 0) for path in run_dir.glob("learner-g*.pid"))}


def learner_pid(run_dir: Path, generation: int = 0) -> int:
    """Process id of the learner, once it is up."""
    path = run_dir / f"learner-g{generation}.pid"
    return int(wait_for(lambda: path.exists() and path.read_text(), path.name))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def left_over(run_dir: Path) -> set[int]:
    """Processes of the run that still live."""
    return {pid for pid in processes_of(run_dir) if alive(pid)}

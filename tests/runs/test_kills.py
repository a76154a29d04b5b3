"""Actors of one run that are killed over and over, at any moment of their lives."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.runs.envs.proving_envs import LENGTH, RETURN
from tests.runs.rig import HERE, Launched, Launcher, metrics

ACTORS, GROUPS, ENVS = 4, 2, 4
SCRIPT = f"""
import sys
from pathlib import Path
import seedflow
from seedflow.cluster import Run, open_cluster
from seedflow.envs import probe_spec

if __name__ == "__main__":
    config = seedflow.load_config("tiny.yaml", {{
        "env.id": "proving_envs:Proving-v0",
        "env.kwargs": {{}},
        "actor.count": {ACTORS},
        "actor.groups": {GROUPS},
        "actor.envs_per_group": {ENVS},
        "actor.max_restarts": 1_000_000,
        "actor.restart_window_seconds": 0.1,
        "train.total_agent_steps": 1_000_000_000,
        "train.batch": 16,
        "train.runs_in": "thread",  # the proof looks into training from the process of the learner
        "cluster.local_workers": 3,
        "metrics.every_seconds": 1.0,
    }})
    run_dir = Path("run").absolute()
    run_dir.mkdir()
    with open_cluster(config) as client:
        spec = probe_spec(config.env)
        with Run(client, config, spec, run_dir, learner_module="proving_learner", on_note=print) as run:
            while not run.wait(timeout=0.5):
                if Path("stop").exists():
                    break
"""


def proof(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "proof.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"unrolls": 0, "updates": 0}
    return found


class Killer:
    """Kills actors of a run, never one twice.

    Attributes
    ----------
    registered
        How many of the killed certainly had a lease.
    """

    def __init__(self, launched: Launched, seed: int) -> None:
        self.registered = 0
        self._launched, self._random = launched, random.Random(seed)
        self._killed: set[tuple[int, float]] = set()

    def alive(self) -> list[int]:
        return [pid for pid in self._launched.family("seedflow.actor") if _named(pid) not in self._killed]

    def kill(self) -> None:
        """Kill one after a while in which it may get anywhere: mostly one that steps, or else any."""
        candidates = self.stepping if self._random.random() < 0.8 else self.alive
        alive = self._launched.until(candidates, "actors")
        time.sleep(self._random.uniform(0.0, 0.2))
        pid = self._random.choice(alive)
        self.registered += pid in self.stepping()
        self._killed.add(_named(pid))
        os.kill(pid, self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV)))

    def stepping(self) -> list[int]:
        """Those that have a lease: the slab is mapped into their memory."""
        found = []
        for pid in self.alive():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if "seedflow-slab" in Path(f"/proc/{pid}/maps").read_text():
                    found.append(pid)
        return found


def _named(pid: int) -> tuple[int, float]:
    """A process and when it began: the numbers of processes come again."""
    try:
        return pid, psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return pid, 0.0


@pytest.mark.parametrize(
    "kills", [8, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(4 * 3600)])]
)
def test_killed_actors_leave_only_whole_unrolls_and_whole_episodes(launch: Launcher, kills: int) -> None:
    """The learner checks every unroll that it trains on, see `proving_learner`; here is what is left."""
    (launch.directory / "own.py").write_text(SCRIPT)
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE / "envs")])
    launched = launch(sys.executable, "own.py", env={"PYTHONPATH": path})
    run_dir = launch.directory / "run"
    launched.until(lambda: proof(run_dir)["updates"] > 0, "the first proof")
    killer = Killer(launched, seed=kills)
    for number in range(kills):
        killer.kill()
        if number % 50 == 49:  # training goes on all the while
            before = proof(run_dir)["unrolls"]
            launched.until(lambda before=before: proof(run_dir)["unrolls"] > before, "more unrolls")
    launched.until(lambda: len(killer.stepping()) == ACTORS, "the last replacements to register")
    done = proof(run_dir)["updates"]
    everyone = {str(env) for env in range(ACTORS * GROUPS * ENVS)}

    def back() -> bool:
        seen = proof(run_dir)["seen"]
        return {env for env, last in seen.items() if last["update"] > done} == everyone

    launched.until(back, "every environment")
    (launch.directory / "stop").touch()
    assert launched.end() == 0, launched.err
    launched.check_quiet()

    told = launched.out.count("; starting generation")
    assert told == kills
    shown, records = proof(run_dir), metrics(run_dir)
    restarts = records[-1]["actor/restarts"]
    # The learner does not see one that is killed before it registers.
    assert 0 < killer.registered <= restarts <= kills
    assert shown["seen"].keys() == everyone
    assert shown["unrolls"] > 4 * kills
    assert {r["episode/length"] for r in records if "episode/length" in r} == {float(LENGTH)}
    assert {r["episode/return"] for r in records if "episode/return" in r} == {RETURN}
    assert records[-1]["lease/active"] <= ACTORS
    print(f"{kills} kills, {restarts:.0f} restarts seen by the learner, {shown['unrolls']} unrolls")

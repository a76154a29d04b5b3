"""Workers whose time is limited, as batch systems limit it, under a run that takes longer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.runs.rig import ENDLESS, PROGRAM, Launcher, learner_restarts, metrics, steps, until

DASK = str(Path(sys.executable).with_name("dask"))
LIFETIME = ("--lifetime", "25 seconds", "--lifetime-stagger", "2 seconds", "--lifetime-restart")
WORKER = ("--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "120")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_workers_that_come_and_go_take_actors_along_and_the_count_of_steps_goes_on(launch: Launcher) -> None:
    run_dir, file = launch.directory / "run", launch.directory / "scheduler.json"
    options = ("--port", "0", "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    launch(DASK, "scheduler", *options, "--scheduler-file", str(file))
    address = until(
        lambda: file.exists() and file.read_text() and json.loads(file.read_text())["address"], "it"
    )
    launch(DASK, "worker", address, *WORKER, "--resources", "LEARNER=1")
    for _ in range(2):
        launch(DASK, "worker", address, *WORKER, "--resources", "ACTOR=1", *LIFETIME)
    training = ("actor.count=2", "actor.reconnect_seconds=240", "rpc.path=auto", ENDLESS)
    launched = launch.train(*training, "--scheduler", address)
    launched.until(lambda: steps(run_dir) > 100, "training")
    launched.until(lambda: metrics(run_dir)[-1]["actor/restarts"] >= 4, "every worker to come again, twice")
    launch(DASK, "worker", address, *WORKER, "--resources", "ACTOR=1")  # and one that stays
    before = steps(run_dir)
    launched.until(
        lambda: steps(run_dir) > before + 100 and metrics(run_dir)[-1]["lease/active"] >= 1, "more steps"
    )
    assert learner_restarts(run_dir) == 0
    records = [record["steps/agent"] for record in metrics(run_dir)]
    assert records == sorted(records)
    assert max(record["lease/active"] for record in metrics(run_dir)) <= 2
    stopper = launch(str(PROGRAM), "stop", "run")
    assert stopper.wait() == 0, stopper.err
    assert launched.wait() == 143
    launched.check_quiet()
    assert "leaves the cluster; starting generation" in launched.out

"""Runs in the background: started, followed and ended by three different processes."""

from __future__ import annotations

import os
import re
import signal

import pytest

from seedflow.driver_record import DRIVER, STOP, DriverRecord
from tests.runs.rig import ENDLESS, PROGRAM, Launched, Launcher, manifests, steps


def detached(launch: Launcher, *arguments: str) -> DriverRecord:
    """Start a run that way; returns who drives it."""
    launched = launch(str(PROGRAM), "train", str(launch.config), "--run-dir", "run", "--detach", *arguments)
    assert launched.wait() == 0, launched.err
    assert "Run directory: run" in launched.out
    assert re.search(r"follow it by: seedflow attach run; end it by: seedflow stop run", launched.out)
    record = DriverRecord.read(launch.directory / "run")
    assert record is not None
    return record


def attach(launch: Launcher) -> Launched:
    return launch(str(PROGRAM), "attach", "run")


def test_a_detached_run_is_followed_to_its_end(launch: Launcher) -> None:
    detached(launch, "train.total_agent_steps=20000")
    follower = attach(launch)
    assert follower.wait() == 0, follower.err
    assert re.search(r"run \| .*steps \(.*return", follower.out)
    assert "Finished 20," in follower.out
    again = attach(launch)  # a run that has ended tells how
    assert again.wait() == 0
    assert "Finished 20," in again.out


def test_a_run_is_stopped_by_another_process_and_saves(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    detached(launch, ENDLESS)
    follower = attach(launch)
    follower.until(lambda: steps(run_dir) > 100, "training")
    stopper = launch(str(PROGRAM), "stop", "run")
    assert stopper.wait() == 0, stopper.err
    assert "go on with: seedflow train --resume --run-dir run" in stopper.out
    assert follower.wait() == 143
    assert "Stopping the run" in follower.out
    assert manifests(run_dir)
    assert not (run_dir / STOP).exists()
    assert DriverRecord.read(run_dir).exit_code == 143  # type: ignore[union-attr]
    again = launch(str(PROGRAM), "stop", "run")
    assert again.wait() == 0
    assert "has ended already" in again.out


def test_a_run_in_the_foreground_is_stopped_in_the_same_way(launch: Launcher) -> None:
    launched = launch.train(ENDLESS)
    launched.until(lambda: (launch.directory / "run" / DRIVER).exists(), "the run to be up")
    stopper = launch(str(PROGRAM), "stop", "run")
    assert stopper.wait() == 0, stopper.err
    assert launched.end() == 143
    launched.check_quiet()
    assert "was stopped by `seedflow stop`" in launched.err
    assert "go on with: seedflow train --resume --run-dir run" in launched.err


@pytest.mark.slow
def test_ctrl_c_ends_the_following_and_not_the_run(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    detached(launch, ENDLESS)
    follower = attach(launch)
    follower.until(lambda: "steps" in follower.out, "the follower to show something")
    follower.interrupt()
    assert follower.wait() == 130
    assert "The run goes on; follow it again by: seedflow attach run" in follower.err
    before = steps(run_dir)
    stopper = launch(str(PROGRAM), "stop", "run")
    assert stopper.wait() == 0
    assert steps(run_dir) >= before


@pytest.mark.slow
def test_a_local_cluster_ends_with_its_driver_and_the_follower_says_so(launch: Launcher) -> None:
    record = detached(launch, ENDLESS)
    follower = attach(launch)
    follower.until(lambda: steps(launch.directory / "run") > 100, "training")
    os.kill(record.pid, signal.SIGKILL)
    assert follower.wait() == 1
    assert f"its driver, process {record.pid} on " in follower.err
    assert "go on with: seedflow train --resume --run-dir run" in follower.err


def test_what_cannot_be_started_is_told_at_once(launch: Launcher) -> None:
    launched = launch(
        str(PROGRAM), "train", str(launch.config), "--run-dir", "run", "--detach", "env.id=No-v0"
    )
    assert launched.wait() == 2
    assert "No-v0" in launched.out + launched.err
    assert not (launch.directory / "run").exists()


def test_a_directory_without_a_run_is_refused(launch: Launcher) -> None:
    (launch.directory / "run").mkdir()
    for command in ("attach", "stop"):
        launched = launch(str(PROGRAM), command, "run")
        assert launched.wait() == 2
        assert "holds no run that could be followed or stopped from here" in launched.err

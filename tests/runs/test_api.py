"""Runs of the Python API, in the script of somebody."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.runs.rig import ENDLESS, HERE, PROMISED_SECONDS, Launched, Launcher, progress, steps

pytestmark = pytest.mark.slow

HEAD = """
import os, signal, sys
from pathlib import Path
import psutil
import seedflow
from tests.runs.rig import steps, until

config = seedflow.load_config("tiny.yaml", sys.argv[1:])
run_dir = Path("run")

def main():
"""
TAIL = """

if __name__ == "__main__":
    main()
"""


def start(launch: Launcher, body: str) -> Launched:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    (launch.directory / "own.py").write_text(HEAD + lines + TAIL)
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE / "envs")])
    return launch(sys.executable, "own.py", ENDLESS, env={"PYTHONPATH": path})


def test_a_run_is_stopped_as_often_as_one_likes(launch: Launcher) -> None:
    body = """
run = seedflow.train(config, run_dir=run_dir, block=False)
until(lambda: steps(run_dir) > 100, "training")
assert run.status().phase == "running"
assert not run.wait(timeout=0.0)
run.stop()
run.stop()
assert run.wait(timeout=0.0)
assert run.status().phase == "ended"
run.stop()
commands = [" ".join(child.cmdline()) for child in psutil.Process().children()]
print("left", [command for command in commands if "resource_tracker" not in command])
"""
    launched = start(launch, body)
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert "left []" in launched.out
    assert progress(launch.directory / "run")["agent_steps"] > 100


def test_a_run_is_stopped_after_a_worker_has_died(launch: Launcher) -> None:
    body = """
with seedflow.train(config, run_dir=run_dir, block=False) as run:
    until(lambda: steps(run_dir) > 100, "training")
    actor = psutil.Process(run.status().actors[0].pid)
    actor.parent().kill()
    run.stop()
"""
    launched = start(launch, body)
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert progress(launch.directory / "run")["agent_steps"] > 100


def test_two_runs_after_one_another_in_one_program(launch: Launcher) -> None:
    body = """
for name in ("run", "another"):
    run_dir = Path(name)
    with seedflow.train(config, run_dir=run_dir, block=False) as run:
        until(lambda: steps(run_dir) > 100, "training")
"""
    launched = start(launch, body)
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert progress(launch.directory / "another")["agent_steps"] > 100


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_script_and_the_run(launch: Launcher, number: signal.Signals, code: int) -> None:
    body = "seedflow.train(config, run_dir=run_dir)"
    launched = start(launch, body)
    launched.until(lambda: steps(launch.directory / "run") > 100, "training")
    launched.send(number)
    assert launched.wait() == code
    launched.check_gone(PROMISED_SECONDS)
    # Python shows the KeyboardInterrupt of a script that does not catch it: one traceback, no more.
    assert launched.err.count("Traceback") == (1 if number == signal.SIGINT else 0)
    assert progress(launch.directory / "run")["agent_steps"] > 100

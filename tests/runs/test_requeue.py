"""Runs in a batch queue: a signal stops them with a checkpoint and the code that says "start me again"."""

from __future__ import annotations

import signal

import pytest

from tests.runs.rig import ENDLESS, PROGRAM, PROMISED_SECONDS, Launcher, manifests, progress, steps

REQUEUE = "train.requeue_exit=true"
RUNTIMES = pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.slow)])


@RUNTIMES
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_stopped_run_asks_to_be_requeued_and_then_goes_on(
    launch: Launcher, runtime: str, name: str
) -> None:
    run_dir = launch.directory / "run"
    settings = ["--resume-or-start", f"runtime={runtime}", REQUEUE, "train.preemption_signal=SIGUSR1"]
    first = launch.train(*settings, ENDLESS)
    first.until(lambda: steps(run_dir), "some steps")
    first.send(signal.Signals[name])
    assert first.wait() == 75, first.err
    first.check_gone(PROMISED_SECONDS)
    assert "was stopped early" in first.err
    assert "go on with: seedflow train --resume" in first.err
    saved = progress(run_dir)["agent_steps"]
    assert saved > 0
    again = launch.train(*settings, f"train.total_agent_steps={int(saved) + 200}")
    assert again.end() == 0, again.err
    assert progress(run_dir)["agent_steps"] >= saved + 200


def test_without_being_asked_the_code_is_that_of_the_signal(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("runtime=inline", "train.preemption_signal=SIGUSR2", ENDLESS)
    launched.until(lambda: steps(run_dir), "some steps")
    launched.send(signal.SIGUSR2)
    assert launched.wait() == 128 + signal.SIGUSR2, launched.err
    assert progress(run_dir)["agent_steps"] > 0


@RUNTIMES
def test_a_second_signal_leaves_the_last_generation_whole(launch: Launcher, runtime: str) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(f"runtime={runtime}", REQUEUE, "checkpoint.every_seconds=0.2", ENDLESS)
    launched.until(lambda: len(manifests(run_dir)) > 2, "generations")
    launched.send(signal.SIGTERM)
    launched.send(signal.SIGTERM)
    assert launched.wait() in (75, 128 + signal.SIGTERM), launched.err
    launched.check_gone(PROMISED_SECONDS)
    saved = progress(run_dir)["agent_steps"]
    resumed = launch.train("train.total_agent_steps=" + str(int(saved) + 100), resume=True)
    assert resumed.end() == 0, resumed.err


def test_a_run_without_checkpoint_is_not_worth_requeueing(launch: Launcher) -> None:
    launched = launch.hold("open:tiny.yaml", str(PROGRAM), "train", "tiny.yaml", "--run-dir", "run", REQUEUE)
    launched.until(lambda: launched.marked("held"), "the configuration")
    launched.send(signal.SIGTERM)
    assert launched.wait() == 128 + signal.SIGTERM, launched.err

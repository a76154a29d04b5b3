"""Ctrl-C and SIGTERM at every stage: no traceback, nothing left, the right exit code, and a checkpoint."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from seedflow.interrupts import STOPPING
from seedflow.learner.checkpoint import CheckpointStore
from tests.runs.rig import (
    ENDLESS,
    PROGRAM,
    PROMISED_SECONDS,
    Launched,
    Launcher,
    manifests,
    progress,
    staged,
    steps,
)

CTRL_C = pytest.param(signal.SIGINT, id="ctrl-c")
SIGTERM = pytest.param(signal.SIGTERM, id="sigterm")
SLOW_SIGTERM = pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.slow)
SLOW_HANG_UP = pytest.param(signal.SIGHUP, id="hang-up", marks=pytest.mark.slow)
BOTH = pytest.mark.parametrize("number", [CTRL_C, SIGTERM])
ONE = pytest.mark.parametrize("number", [CTRL_C, SLOW_SIGTERM])  # by default


def end_by(launched: Launched, number: signal.Signals) -> None:
    """Send a signal and check how the program ends."""
    launched.send(number)
    check_end(launched, number)


def check_end(launched: Launched, number: signal.Signals) -> None:
    assert launched.wait() == 128 + number, launched.err
    launched.check_quiet()
    launched.check_gone(PROMISED_SECONDS)
    assert f"Stopped by {number.name}." in launched.err


def check_resumes(launch: Launcher, run_dir: Path) -> None:
    """A run that was stopped goes on from where it was saved."""
    saved = progress(run_dir)["agent_steps"]
    total = int(saved) + 200
    resumed = launch.train(f"train.total_agent_steps={total}", resume=True)
    assert resumed.end() == 0, resumed.err
    assert f"resumed generation {len(manifests(run_dir)) - 1}: {saved} agent steps" in resumed.out
    assert progress(run_dir)["agent_steps"] >= total


@BOTH
def test_while_the_configuration_is_read(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.hold("open:tiny.yaml", str(PROGRAM), "train", "tiny.yaml", "--run-dir", "run")
    launched.until(lambda: launched.marked("held"), "the configuration")
    end_by(launched, number)
    assert not (launch.directory / "run").exists()


@BOTH
def test_while_the_environment_is_probed(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train(*staged(hang="probe-init"))
    launched.until(lambda: launched.marked("probe-init"), "the probe")
    end_by(launched, number)
    assert not (launch.directory / "run").exists()


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("module", ["distributed", "distributed.deploy.local"])
def test_while_dask_is_loaded(launch: Launcher, number: signal.Signals, module: str) -> None:
    launched = launch.hold(f"import:{module}", str(PROGRAM), "train", "tiny.yaml", "--run-dir", "run")
    launched.until(lambda: launched.marked("held"), module)
    end_by(launched, number)


@ONE
def test_while_the_local_cluster_starts(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train()
    launched.until(lambda: launched.family("spawn_main"), "a worker process")
    end_by(launched, number)


@BOTH
def test_while_a_scheduler_does_not_answer(
    launch: Launcher, silent_scheduler: str, number: signal.Signals
) -> None:
    launched = launch.train("--scheduler", silent_scheduler, "cluster.connect_seconds=1000")
    launched.until(lambda: launched.connected_to(silent_scheduler), "the connection")
    end_by(launched, number)
    assert not (launch.directory / "run").exists()


@pytest.mark.slow
@BOTH
def test_while_no_worker_is_there(launch: Launcher, number: signal.Signals) -> None:
    options = ["--port=0", "--no-dashboard", "--scheduler-file=scheduler.json"]
    scheduler = launch(sys.executable, "-m", "distributed.cli.dask_scheduler", *options)
    scheduler.until(lambda: (launch.directory / "scheduler.json").exists(), "the scheduler")
    launched = launch.train("--scheduler-file", "scheduler.json")
    launched.until(lambda: "waiting for workers" in launched.out, "the notice")
    end_by(launched, number)
    assert not (launch.directory / "run").exists()
    scheduler.send(signal.SIGTERM)
    scheduler.end()


@pytest.mark.slow
@BOTH
def test_while_the_learner_starts(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train()
    launched.until(lambda: launched.family("seedflow.learner"), "the learner")
    end_by(launched, number)


@pytest.mark.slow
@BOTH
def test_before_the_first_step(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train(*staged(hang="actor-reset"), "actor.stop_seconds=2")
    launched.until(lambda: launched.marked("actor-reset"), "an environment that does not come back")
    end_by(launched, number)
    assert progress(launch.directory / "run")["agent_steps"] == 0


@pytest.mark.parametrize("number", [CTRL_C, SLOW_SIGTERM, SLOW_HANG_UP])
def test_while_it_trains(launch: Launcher, number: signal.Signals) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    launched.send(number)
    launched.until(lambda: STOPPING in launched.out, "an answer")
    check_end(launched, number)
    saved = progress(run_dir)["agent_steps"]
    assert saved > 100
    assert launched.err.splitlines()[-1] == (
        f"Stopped by {number.name}. Saved {saved:,} of 1,000,000,000 steps as checkpoint "
        f"{len(manifests(run_dir))} in run/checkpoints; go on with: seedflow train --resume --run-dir run"
    )
    check_resumes(launch, run_dir)


@pytest.mark.slow
@BOTH
def test_while_a_checkpoint_is_written(launch: Launcher, number: signal.Signals) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS, "network.hidden=[3000, 3000]", "checkpoint.every_seconds=0.1")
    tensors = run_dir / "checkpoints" / "tensors"
    launched.until(
        lambda: len(manifests(run_dir)) > 1 and list(tensors.glob(".*")), "a checkpoint in the making"
    )
    end_by(launched, number)
    newest = CheckpointStore(run_dir / "checkpoints").load()
    assert newest.state["progress"]["agent_steps"] > 0
    assert not list(tensors.glob(".*"))


@pytest.mark.slow
@BOTH
def test_while_an_evaluation_round_is_open(launch: Launcher, number: signal.Signals) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS, "eval.every=100", "eval.episodes=100000")
    launched.until(lambda: steps(run_dir) > 300, "training")
    end_by(launched, number)
    assert progress(run_dir)["agent_steps"] > 300


@pytest.mark.slow
@BOTH
def test_once_more_while_it_ends(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train(*staged(hang="actor-close"), ENDLESS, "actor.stop_seconds=4")
    launched.until(lambda: steps(launch.directory / "run") > 100, "training")
    launched.send(number)
    launched.until(lambda: launched.marked("actor-close"), "the closing of the environments")
    end_by(launched, number)
    assert ("press Ctrl-C once more" in launched.err) == (number == signal.SIGINT)
    assert progress(launch.directory / "run")["agent_steps"] > 100


@pytest.mark.slow
def test_the_third_ctrl_c_ends_the_program_at_once_and_the_run_soon_after(launch: Launcher) -> None:
    launched = launch.train(*staged(hang="actor-close"), ENDLESS, "actor.stop_seconds=1000")
    launched.until(lambda: steps(launch.directory / "run") > 100, "training")
    launched.interrupt()
    launched.until(lambda: launched.marked("actor-close"), "the closing of the environments")
    launched.interrupt()
    launched.until(lambda: "press Ctrl-C once more" in launched.err, "the hint")
    launched.interrupt()
    assert launched.wait() == 130
    launched.check_quiet()
    launched.check_gone(PROMISED_SECONDS)
    assert progress(launch.directory / "run")["agent_steps"] > 100


@pytest.mark.slow
@BOTH
def test_while_a_finished_run_closes(launch: Launcher, number: signal.Signals) -> None:
    launched = launch.train(*staged(hang="actor-close"), "actor.stop_seconds=4")
    launched.until(lambda: launched.marked("actor-close"), "the closing of the environments")
    end_by(launched, number)
    assert progress(launch.directory / "run")["agent_steps"] >= 1000


@ONE
def test_while_everything_runs_in_one_process(launch: Launcher, number: signal.Signals) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("runtime=inline", ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    end_by(launched, number)
    assert progress(run_dir)["agent_steps"] > 100
    check_resumes(launch, run_dir)


@pytest.mark.slow
def test_twice_where_an_environment_of_the_only_process_hangs(launch: Launcher) -> None:
    launched = launch.train("runtime=inline", *staged(hang="main-step3"))
    launched.until(lambda: launched.marked("main-step3"), "an environment that does not come back")
    launched.interrupt()
    end_by(launched, signal.SIGTERM)
    assert manifests(launch.directory / "run")


@ONE
def test_while_a_checkpoint_is_evaluated(launch: Launcher, number: signal.Signals) -> None:
    trained = launch.train("runtime=inline", *staged(hang="main-step3"), "train.total_agent_steps=50")
    trained.mark("go")
    assert trained.end() == 0, trained.err
    launched = launch(str(PROGRAM), "eval", "run", "--episodes", "1000")
    launched.until(lambda: launched.marked("main-step3"), "the evaluation")
    end_by(launched, number)
    assert launched.out == ""


@pytest.mark.slow
@BOTH
def test_while_environments_in_processes_of_their_own_are_evaluated(
    launch: Launcher, number: signal.Signals
) -> None:
    forking = ["env.id=run_envs:Forking-v0", "env.kwargs={pause: 0.001}"]
    trained = launch.train("runtime=inline", *forking, "train.total_agent_steps=50")
    assert trained.end() == 0, trained.err
    launched = launch(str(PROGRAM), "eval", "run", "--episodes", "1000000")
    launched.until(lambda: launched.marked("main-step5"), "the evaluation")
    end_by(launched, number)

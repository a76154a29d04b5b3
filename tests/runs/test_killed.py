"""One process of a run is killed: what becomes of the others."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.runs.rig import (
    ENDLESS,
    PROMISED_SECONDS,
    Launcher,
    learner_restarts,
    manifests,
    metrics,
    progress,
    resumptions,
    staged,
    steps,
)


def test_a_killed_actor_is_replaced_and_the_run_goes_on_to_its_end(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(*staged(pause=0.005), "actor.count=2", "train.total_agent_steps=2000")
    launched.until(lambda: steps(run_dir) > 100, "training")
    victim = min(launched.family("seedflow.actor"))
    os.kill(victim, signal.SIGKILL)
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert metrics(run_dir)[-1]["actor/restarts"] == 1
    assert steps(run_dir) >= 2000
    assert "was killed by SIGKILL" in launched.out
    assert "; starting generation 1" in launched.out
    logs = sorted(path.name for path in (run_dir / "logs").iterdir())
    (replaced,) = [name for name in logs if name.endswith("g1.log")]
    assert "has lease" in (run_dir / "logs" / replaced).read_text()


@pytest.mark.slow
def test_the_only_actor_is_replaced_and_its_environments_step_again(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(*staged(pause=0.005), ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    os.kill(*launched.family("seedflow.actor"), signal.SIGKILL)
    launched.until(lambda: metrics(run_dir)[-1]["actor/restarts"] == 1, "the restart")
    before = steps(run_dir)
    launched.until(lambda: steps(run_dir) > before + 100, "steps of the next generation")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    increases = [record["steps/agent"] for record in metrics(run_dir)]
    assert increases == sorted(increases)


@pytest.mark.slow
def test_a_killed_gateway_is_replaced(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("rpc.path=grpc", ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    os.kill(*launched.family("seedflow.rpc.gateway"), signal.SIGKILL)
    launched.until(lambda: "starting it again" in launched.out, "the notice")
    before = steps(run_dir)
    launched.until(lambda: steps(run_dir) > before + 500, "more steps")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()


def test_a_killed_learner_goes_on_from_its_newest_checkpoint(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("checkpoint.every_seconds=0.5", "actor.reconnect_seconds=200", ENDLESS)
    launched.until(lambda: len(manifests(run_dir)) > 1, "checkpoints")
    saved = progress(run_dir)["agent_steps"]
    os.kill(*launched.family("seedflow.learner"), signal.SIGKILL)
    launched.until(lambda: learner_restarts(run_dir) == 1, "the next learner")
    launched.until(lambda: steps(run_dir) > saved + 500, "more steps")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()
    assert "the learner was killed by SIGKILL; starting generation 1 from" in launched.out
    (resumed,) = resumptions(run_dir)
    assert resumed >= saved  # what was committed is not lost
    assert metrics(run_dir)[-1]["actor/restarts"] == 0  # its actor has found it by itself
    assert "lost its learner" in (run_dir / "logs" / "actor-0-g0.log").read_text()


@pytest.mark.slow
def test_a_killed_learner_that_has_saved_nothing_begins_again(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("checkpoint.every_seconds=1000", ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    os.kill(*launched.family("seedflow.learner"), signal.SIGKILL)
    launched.until(lambda: learner_restarts(run_dir) == 1, "the next learner")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()


def test_a_learner_that_keeps_dying_ends_the_run_with_the_reason(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("learner.max_restarts=0", ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    os.kill(*launched.family("seedflow.learner"), signal.SIGKILL)
    assert launched.end() == 1
    launched.check_quiet()
    assert "the learner was killed by SIGKILL; 1 failures of the learner within 600 s" in launched.err
    assert str(run_dir / "logs" / "learner-0-g0.log") in launched.err


@pytest.mark.slow
def test_a_killed_training_process_is_started_again_with_its_learner(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    for restarts in (1, 2):  # the same again is no sign of a fault that a restart cannot cure
        os.kill(*launched.family("seedflow.learner.training_process"), signal.SIGKILL)
        launched.until(lambda n=restarts: learner_restarts(run_dir) == n, "the next learner")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()
    assert "the training process was killed by SIGKILL" in launched.out


@pytest.mark.slow
@pytest.mark.parametrize("part", ["seedflow.learner", "seedflow.learner.training_process"])
def test_a_stopped_learner_is_replaced_as_a_killed_one_is(launch: Launcher, part: str) -> None:
    run_dir = launch.directory / "run"
    limits = ("inference.lease_seconds=8", "actor.heartbeat_seconds=1", "actor.reconnect_seconds=200")
    launched = launch.train("checkpoint.every_seconds=0.5", *limits, ENDLESS)
    launched.until(lambda: len(manifests(run_dir)) > 1, "checkpoints")
    saved = progress(run_dir)["agent_steps"]
    (stopped,) = launched.family(part)
    os.kill(stopped, signal.SIGSTOP)
    launched.until(lambda: learner_restarts(run_dir) == 1, "the next learner")
    launched.until(lambda: steps(run_dir) > saved + 500, "more steps")
    assert not psutil.pid_exists(stopped)
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()
    assert "process was stopped for 8 s (inference.lease_seconds)" in launched.out
    (resumed,) = resumptions(run_dir)
    assert resumed >= saved
    assert metrics(run_dir)[-1]["actor/restarts"] == 0


@pytest.mark.slow
def test_a_killed_worker_takes_its_actor_along_which_is_placed_again(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    (actor,) = launched.family("seedflow.actor")
    os.kill(launched.parent(actor), signal.SIGKILL)
    launched.until(lambda: metrics(run_dir)[-1]["actor/restarts"] == 1, "the restart")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()


@pytest.mark.slow
def test_a_killed_worker_of_the_learner_is_replaced_and_the_learner_with_it(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    (learner,) = launched.family("seedflow.learner")
    os.kill(launched.parent(learner), signal.SIGKILL)
    launched.until(lambda: learner_restarts(run_dir) == 1, "the next learner")
    # The one before has saved, as an orphan does: its worker was gone, and nothing of its work is.
    assert manifests(run_dir)
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()
    assert "the learner was lost with its worker" in launched.out


def test_a_killed_launcher_leaves_nothing_not_even_processes_of_an_environment(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("env.id=run_envs:Forking-v0", "env.kwargs={pause: 0.001}", ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    (actor,) = [pid for pid in launched.family("seedflow.actor") if launched.children(pid)]
    assert len(launched.children(actor)) == 4
    assert list(launched.temporary.glob("seedflow-*"))
    launched.process.kill()
    launched.wait()
    launched.check_gone(PROMISED_SECONDS)
    assert manifests(run_dir)
    assert progress(run_dir)["agent_steps"] > 100

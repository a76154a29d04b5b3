"""Environments that crash, hang or return nonsense, and actors that are stopped, in whole runs."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runs.rig import ENDLESS, Launched, Launcher, metrics, steps


def faulty(kind: str, **kwargs: Any) -> list[str]:
    return ["env.id=run_envs:Faulty-v0", f"env.kwargs={json.dumps({'kind': kind, 'pause': 0.002, **kwargs})}"]


def learner_log(run_dir: Path) -> str:
    return (run_dir / "logs" / "learner-0-g0.log").read_text()


def stop(launched: Launched) -> None:
    launched.send(signal.SIGTERM)
    assert launched.end() == 143, launched.err
    launched.check_quiet()


def test_environments_that_kill_their_process_at_random_are_replaced_and_others_go_on(
    launch: Launcher,
) -> None:
    run_dir = launch.directory / "run"
    steady = ["actor.count=2", "actor.max_restarts=1000", "actor.restart_window_seconds=0.1"]
    launched = launch.train(*faulty("crash", chance=0.002), *steady, ENDLESS)
    launched.until(lambda: metrics(run_dir) and metrics(run_dir)[-1]["actor/crashes"] >= 3, "crashes")
    before = steps(run_dir)
    launched.until(lambda: steps(run_dir) > before + 500, "more steps")
    stop(launched)
    last = metrics(run_dir)[-1]
    assert last["actor/restarts"] >= 3
    assert last["lease/dropped_closed"] >= 3
    log = learner_log(run_dir)
    told = re.findall(
        r"train actor (\d): generation \d+: actor-(\d) was killed by SIGSEGV in step of group \d "
        r"\(environments (\d) to (\d)\), environment (\d)",
        log,
    )
    assert len(told) >= 3
    for actor, named, first, last_env, env in told:
        assert actor == named
        assert int(first) <= int(env) <= int(last_env)
        assert int(env) // 4 == int(actor)  # two groups of two each
    assert "Fatal Python error: Segmentation fault" in log
    assert {record["episode/return"] for record in metrics(run_dir) if "episode/return" in record} == {10.0}


def test_an_actor_that_is_stopped_is_replaced_and_ended(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    quick = ["inference.lease_seconds=2", "actor.heartbeat_seconds=0.5", "actor.stop_seconds=2"]
    launched = launch.train(*faulty("none", chance=0.0), "actor.count=2", *quick, ENDLESS)
    launched.until(lambda: steps(run_dir) > 100, "training")
    victim = min(launched.family("seedflow.actor"))
    os.kill(victim, signal.SIGSTOP)
    launched.until(lambda: metrics(run_dir)[-1]["actor/restarts"] == 1, "the replacement")
    launched.until(lambda: victim not in launched.family("seedflow.actor"), "the end of the stopped one")
    before = steps(run_dir)
    launched.until(lambda: steps(run_dir) > before + 200, "more steps")
    stop(launched)
    last = metrics(run_dir)[-1]
    assert (last["lease/dropped_silent"], last["actor/hangs"]) == (1, 1)
    assert "fell silent; starting generation 1" in launched.out
    assert re.search(r"train actor \d: generation 0: actor-\d fell silent", learner_log(run_dir))


@pytest.mark.slow
def test_an_environment_that_hangs_with_the_interpreter_lock_is_killed_and_named(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    patient = ["inference.lease_seconds=300", "actor.env_timeout_seconds=2"]
    launched = launch.train(*faulty("hold", once=True), *patient, ENDLESS)
    launched.until(lambda: metrics(run_dir) and metrics(run_dir)[-1]["actor/hangs"] == 1, "the hang")
    before = steps(run_dir)
    launched.until(lambda: steps(run_dir) > before + 200, "steps of the replacement")
    stop(launched)
    log = learner_log(run_dir)
    assert re.search(
        r"train actor 0: generation 0: actor-0 was killed, since step of group 0 \(environments 0 to 1\), "
        r"environment 0 did not return",
        log,
    )
    assert "run_envs.py" in log[log.index("Fatal Python error: Aborted") :]


@pytest.mark.slow
def test_an_environment_that_always_hangs_ends_the_run_with_its_stack(launch: Launcher) -> None:
    launched = launch.train(*faulty("hang"), "actor.env_timeout_seconds=1", ENDLESS)
    assert launched.end() == 1
    assert "the same exception twice" in launched.err
    assert "environment 0 has not returned for 1 s" in launched.err
    assert "time.sleep(HANG_SECONDS)" in launched.err


@pytest.mark.slow
def test_a_number_that_is_none_ends_the_run_with_environment_step_and_array(launch: Launcher) -> None:
    launched = launch.train(*faulty("nan"), ENDLESS)
    assert launched.end() == 1
    assert "observation of environment 0 is nan at step 6" in launched.err
    assert "env.on_nonfinite=mask" in launched.err


@pytest.mark.slow
def test_masked_numbers_are_counted_and_the_run_goes_on(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train(*faulty("nan", chance=0.1), "env.on_nonfinite=mask")
    assert launched.end() == 0, launched.err
    last = metrics(run_dir)[-1]
    assert last["env/masked"] > 4
    assert last["env/masked"] % 4 == 0
    norms = [record["loss/gradient_norm"] for record in metrics(run_dir) if "loss/gradient_norm" in record]
    assert norms
    assert all(math.isfinite(norm) for norm in norms)

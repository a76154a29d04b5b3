"""Runs that are killed over and over and go on exactly."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from seedflow.train import train
from tests.exact_runs import digest, exact_config
from tests.runs.rig import ENDLESS, Launcher, manifests, progress


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_a_run_that_is_killed_at_random_has_the_bits_of_one_that_was_not(
    launch: Launcher, algorithm: str, kills: int
) -> None:
    """It is killed while it acts, trains and saves, and each time goes on from its newest generation."""
    rng, run_dir = random.Random(7), launch.directory / "run"
    config = exact_config(algorithm, 1, checkpoint={"every_seconds": 0.05})
    launch.config.write_text(json.dumps(config.model_dump(mode="json")))
    for _ in range(kills):
        before = manifests(run_dir)[-1:]
        launched = launch.train("--resume-or-start", ENDLESS)
        launched.until(lambda before=before: manifests(run_dir)[-1:] != before, "another generation")
        time.sleep(rng.uniform(0.0, 0.3))  # when it is killed is what is random here
        os.kill(launched.process.pid, signal.SIGKILL)
        assert launched.wait() == -signal.SIGKILL
        launched.check_gone(5.0)
    total = int(progress(run_dir)["agent_steps"]) + 200
    last = launch.train("--resume-or-start", f"train.total_agent_steps={total}")
    assert last.end() == 0, last.err
    train(exact_config(algorithm, total), run_dir=launch.directory / "whole")
    killed, whole = digest(run_dir), digest(launch.directory / "whole")
    assert killed.keys() == whole.keys()
    assert [name for name in whole if killed[name] != whole[name]] == []

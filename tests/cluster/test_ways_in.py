"""Whole runs, started from where people start them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest
from distributed import Client

import seedflow
from seedflow.config import parse_config
from tests.runs.rig import ENDLESS, PATIENCE, PROGRAM, TINY, steps, until

QUIET = {**TINY, "metrics": {**TINY["metrics"], "console": "off"}}
GAME = """
import gymnasium, numpy

class Coin(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {}
    def step(self, action):
        return numpy.zeros(3, numpy.float32), float(action), True, False, {}

gymnasium.register("Coin-v0", Coin)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("runtime", ["local", "cluster"])
def test_a_run_in_a_notebook(runtime: str, user_client: Client, tmp_path: Path) -> None:
    """There the program runs in an event loop, which no part of a run may need or stop."""
    config = parse_config({**QUIET, "runtime": runtime})

    async def cells() -> list[str]:
        ticks: list[str] = []

        async def tick() -> None:
            while True:
                ticks.append("tick")
                await asyncio.sleep(0.01)

        given = user_client if runtime == "cluster" else None
        other = asyncio.create_task(tick())
        seedflow.train(config, client=given, run_dir=tmp_path / "first")
        endless = seedflow.load_config(config, [ENDLESS])
        with seedflow.train(endless, client=given, run_dir=tmp_path / "second", block=False) as run:
            ticks.clear()
            while steps(tmp_path / "second") < 500:
                await asyncio.sleep(0.05)
            assert run.status().phase == "running"
        other.cancel()
        return ticks

    assert asyncio.run(asyncio.wait_for(cells(), PATIENCE))
    assert steps(tmp_path / "first") >= 1000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_module_of_ones_own_is_sent_along(user_client: Client, tmp_path: Path) -> None:
    """The workers were started elsewhere and do not find it."""
    (tmp_path / "coin.py").write_text(GAME)
    config = {**QUIET, "env": {"id": "coin:Coin-v0"}}
    (tmp_path / "coins.yaml").write_text(json.dumps(config))
    run_dir = tmp_path / "run"
    command = ["train", "coins.yaml", "--scheduler", user_client.scheduler.address, "--run-dir", str(run_dir)]
    done = subprocess.run(
        [str(PROGRAM), *command, "--ship", "coin"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert seedflow.load_config(run_dir).env.ship == ("coin",)
    until(lambda: steps(run_dir) >= 1000, "the last record")
    unshipped = subprocess.run(
        [str(PROGRAM), *command[:-1], str(tmp_path / "other")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert unshipped.returncode == 2
    assert "coin" in unshipped.stderr

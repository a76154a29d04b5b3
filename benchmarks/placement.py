"""What a run costs its driver and the scheduler: ``python -m benchmarks.placement --workers 64``.

The scheduler is a process of its own. The workers, each with one thread, share another one, which is as many
as the scheduler sees and less than as many machines would have; each hosts one real actor, whose environment
waits out each step, and one the learner. Measured are the time until all actors step, and then the CPU
seconds of driver and scheduler for each second of the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from distributed import Client, Worker
from numpy.typing import NDArray

import seedflow
from seedflow.config import Config, parse_config

PATIENCE = 1800.0
STEP_SECONDS = 0.5


class Slow(gym.Env[NDArray[np.float32], int]):
    """Waits out each step and costs nothing."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS)
        return np.zeros(4, np.float32), 1.0, False, False, {}


def config_for(actors: int) -> Config:
    """Actors that step little: it is their number that counts."""
    return parse_config(
        {
            "runtime": "cluster",
            "actor": {"count": actors, "groups": 1, "envs_per_group": 1, "env_timeout_seconds": None},
            "inference": {"lease_seconds": 600.0},
            "network": {"hidden": [16]},
            "train": {"total_agent_steps": 10**9},
            "metrics": {"console": "off", "tensorboard": False},
            "cluster": {"worker_seconds": PATIENCE, "learner_seconds": PATIENCE},
        }
    )


async def host_workers(scheduler: str, count: int) -> None:
    """As many workers as asked for, until the input ends."""
    ended = asyncio.Event()
    workers = [Worker(scheduler, nthreads=1, memory_limit=0, dashboard=False) for _ in range(count)]
    await asyncio.gather(*workers)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await asyncio.gather(*(worker.close() for worker in workers))


def cpu_seconds(pid: int | None = None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def measure(workers: int, seconds: float, directory: Path) -> dict[str, Any]:
    """One run on `workers` workers, one of them the learner's."""
    file = directory / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--scheduler-file", str(file)]
    scheduler = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", ":0"],
        stderr=subprocess.DEVNULL,
    )
    hosting: subprocess.Popen[bytes] | None = None
    try:
        with Client(scheduler_file=str(file), timeout=120, set_as_default=False) as client:
            address = client.scheduler.address
            command = [sys.executable, "-m", "benchmarks.placement", "--host-workers", address]
            hosting = subprocess.Popen(
                [*command, "--workers", str(workers)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            client.wait_for_workers(workers, timeout=PATIENCE)
            idle = _rates(scheduler.pid, seconds)
            began, before = time.monotonic(), (cpu_seconds(), cpu_seconds(scheduler.pid))
            config = config_for(workers - 1)
            with seedflow.train(
                config, client=client, run_dir=directory / "run", env_fn=Slow, block=False
            ) as run:
                placed = time.monotonic() - began
                while any(role.state != "running" for role in run.status().roles):
                    time.sleep(0.05)
                all_running = time.monotonic() - began
                starting = cpu_seconds() - before[0], cpu_seconds(scheduler.pid) - before[1]
                going = _rates(scheduler.pid, seconds)
    finally:
        if hosting is not None:
            hosting.communicate(timeout=60)
        scheduler.terminate()
        scheduler.wait(30)
    return {
        "workers": workers,
        "learner_up_seconds": round(placed, 2),
        "all_running_seconds": round(all_running, 2),
        "starting_cpu_seconds": {"driver": round(starting[0], 2), "scheduler": round(starting[1], 2)},
        "cpu_share_idle_cluster": idle,
        "cpu_share_running": going,
    }


def _rates(scheduler: int, seconds: float) -> dict[str, float]:
    began, before = time.monotonic(), (cpu_seconds(), cpu_seconds(scheduler))
    time.sleep(seconds)
    wall = time.monotonic() - began
    return {
        "driver": round((cpu_seconds() - before[0]) / wall, 4),
        "scheduler": round((cpu_seconds(scheduler) - before[1]) / wall, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--host-workers", metavar="SCHEDULER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.host_workers:
        asyncio.run(host_workers(arguments.host_workers, arguments.workers))
        return
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(arguments.workers, arguments.seconds, Path(directory)), indent=2))


if __name__ == "__main__":
    main()

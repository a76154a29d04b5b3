"""What a long run does to the memory of its processes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from tests.runs.rig import ENDLESS, PROGRAM, Launched, Launcher, metrics

WARM_UP_SECONDS = 180.0
SECONDS = 600.0
EVERY_SECONDS = 5.0
LIMIT_MB_PER_MINUTE = 1.0
PARTS = ("seedflow.learner", "seedflow.rpc.gateway", "seedflow.actor", "spawn_main", "seedflow train")


def role_of(pid: int) -> str:
    """What a process is; ``spawn_main`` is a Dask worker."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return next((part for part in PARTS if part in command), command[:60])


def resident(pid: int) -> float:
    """MB that a process has for itself, files left out."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) / 1000


def slopes(launched: Launched) -> dict[int, float]:
    """MB per minute of every process, fitted over `SECONDS`."""
    begin = time.monotonic()
    times: list[float] = []
    sizes: dict[int, list[float]] = {pid: [] for pid in launched.family()}
    while (now := time.monotonic()) - begin < SECONDS:
        times.append(now - begin)
        for pid, values in sizes.items():
            values.append(resident(pid))
        time.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - now)))
    return {pid: 60.0 * float(np.polyfit(times, values, 1)[0]) for pid, values in sizes.items()}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("config", "path"), [("cartpole_vtrace", "slab"), ("pong_vtrace", "grpc")], ids=["cartpole", "pong"]
)
def test_no_role_grows_by_a_megabyte_a_minute(launch: Launcher, config: str, path: str) -> None:
    run_dir = launch.directory / "run"
    command = ["train", config, "--run-dir", "run", f"rpc.path={path}", ENDLESS]
    launched = launch(str(PROGRAM), *command)
    launched.until(lambda: metrics(run_dir) and metrics(run_dir)[-1]["train/updates"] > 10, "training")
    warm = time.monotonic() + WARM_UP_SECONDS
    launched.until(lambda: time.monotonic() > warm, "warming up")
    before = metrics(run_dir)[-1]["steps/agent"]
    measured = {f"{role_of(pid)} {pid}": slope for pid, slope in slopes(launched).items()}
    steps = metrics(run_dir)[-1]["steps/agent"] - before
    print(f"\n{config} over {path}, {steps:.0f} steps in {SECONDS:.0f} s; MB per minute:")
    for name, slope in measured.items():
        print(f"  {name}: {slope:+.3f}")
    assert steps > 1000
    for part in ("seedflow.learner", "seedflow.actor", "spawn_main", "seedflow train"):
        assert any(name.startswith(part) for name in measured), part
    assert any(name.startswith("seedflow.rpc.gateway") for name in measured) == (path == "grpc")
    assert {name: slope for name, slope in measured.items() if slope >= LIMIT_MB_PER_MINUTE} == {}

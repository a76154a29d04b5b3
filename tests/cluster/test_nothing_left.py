"""What runs leave on a cluster that others use on: nothing, however many there were."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from scripted_runs import MODULES, PATIENCE, SPEC, actor_pids, left_over, make_config

from seedflow.cluster import Preflight, Run, open_cluster


def on_the_scheduler(dask_scheduler: Any) -> dict[str, Any]:
    broker = dask_scheduler._broker
    return {
        "tasks": sorted(map(str, dask_scheduler.tasks)),
        "clients": len(dask_scheduler.clients),
        "plugins": sorted(dask_scheduler.plugins),
        "variables": len(dask_scheduler.extensions["variables"].variables),
        "queues": len(dask_scheduler.extensions["queues"].queues),
        "messages": [topic for topic, events in broker.get_events().items() if "'seedflow'" in repr(events)],
        "subscribers": sum(len(topic.subscribers) for topic in broker._topics.values()),
    }


def on_a_worker(dask_worker: Any) -> dict[str, Any]:
    import os

    import psutil

    process = psutil.Process()
    return {
        "tasks": sorted(map(str, dask_worker.state.tasks)),
        "plugins": sorted(dask_worker.plugins),
        "resources": dict(dask_worker.state.available_resources),
        "attributes": sorted(name for name in vars(dask_worker) if "seedflow" in name),
        "children": [child.name() for child in process.children(recursive=True)],
        "files": sorted(file.path for file in process.open_files()),
        "listening": sorted(c.laddr[1] for c in process.net_connections("inet") if c.status == "LISTEN"),
        "unix": len([c for c in process.net_connections("unix") if "seedflow" in str(c.laddr)]),
        "directory": sorted(os.listdir(dask_worker.local_directory)),
    }


def stock(client: Client) -> dict[str, Any]:
    """All that a run could leave there."""
    return {"scheduler": client.run_on_scheduler(on_the_scheduler), **client.run(on_a_worker)}


@pytest.mark.parametrize("cycles", [2, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_starting_and_stopping_leaves_nothing(
    cycles: int, user_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    config = make_config()
    before: dict[str, Any] = {}
    for cycle in range(cycles + 1):
        if cycle == 1:  # what the first run has loaded stays loaded
            before = stock(user_client)
        run_dir = tmp_path / f"run-{cycle}"
        run_dir.mkdir()
        with open_cluster(config, user_client) as client:
            preflight = Preflight(client, config, SPEC, print)
            with Run(client, config, SPEC, run_dir, preflight=preflight, **MODULES) as run:
                actor_pids(run_dir)
                if cycle % 2:  # the others are stopped by the driver
                    (run_dir / "finish").touch()
                    assert run.wait(timeout=60)
        assert not left_over(run_dir)
        assert not list(run_dir.glob(".*"))
    assert differences(user_client, before) == []


def differences(client: Client, before: dict[str, Any]) -> list[str]:
    """What there is and was not, after some time to go away."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = stock(client)
        found = [
            f"{where}: {what} is {now[where][what]}, and was {was}"
            for where, things in before.items()
            for what, was in things.items()
            if now[where][what] != was
        ]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)

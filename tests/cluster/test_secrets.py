"""Where the token of a run does not stand."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from distributed import Client
from distributed.diagnostics.task_stream import get_task_stream
from scripted_runs import MODULES, SPEC, actor_pids, make_config

from seedflow.cluster import Run, open_cluster

PAGES = (
    "/info/main/workers.html",
    "/info/main/logs.html",
    "/info/main/events.html",
    "/info/call-stacks/{worker}.html",
    "/info/logs/{worker}.html",
    "/info/worker/{worker}.html",
    "/info/task/{task}.html",
    "/json/counts.json",
    "/json/identity.json",
    "/status",
    "/metrics",
    "/sitemap.json",
)


def pages(client: Client, task: str) -> dict[str, str]:
    """The pages of a scheduler that exist with what is installed, by path."""
    info = client.scheduler_info(n_workers=-1)
    port, workers = info["services"]["dashboard"], list(info["workers"])
    found = {}
    for pattern in PAGES:
        for worker in workers if "{worker}" in pattern else workers[:1]:
            path = pattern.format(worker=urllib.request.quote(worker, ""), task=task)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                    found[path] = answer.read().decode()
            except urllib.error.HTTPError as error:
                found[path] = error.read().decode()
    return found


def test_no_page_of_the_dashboard_no_stream_and_no_process_list_shows_the_token(
    user_client: Client, tmp_path: Path
) -> None:
    config = make_config()
    with (
        get_task_stream(user_client) as stream,
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, **MODULES) as run,
    ):
        token = run._launches._start["token"]
        actor_pids(tmp_path)
        shown = pages(user_client, f"seedflow-{run.id}-actor-0-g0")
        stacks = repr(user_client.call_stack())
        profile = repr(user_client.profile())
        listed = subprocess.run(
            ["ps", "axeww"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    assert f"seedflow-{run.id}" in "".join(shown.values()), "the pages show the tasks of the run"
    assert len(shown) > len(PAGES)
    for text in (*shown.values(), stacks, profile, listed, repr(stream.data)):
        assert token not in text
    user_client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.remove_plugin(name="task-stream"))

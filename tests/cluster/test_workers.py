"""Workers that come and go under a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from scripted_runs import (
    MODULES,
    SPEC,
    actor_pids,
    alive,
    learner_pid,
    left_over,
    make_config,
    wait_for,
)

from seedflow.cluster import Run, open_cluster
from seedflow.config import Config


@pytest.fixture
def config(other_cluster: str) -> Config:
    return make_config(actor={"count": 1}, cluster={"scheduler": other_cluster}, runtime="cluster")


@pytest.fixture
def admin(other_cluster: str) -> Iterator[Client]:
    """A connection of the cluster's owner."""
    with Client(other_cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def worker_pid(admin: Client, run: Run, index: int) -> int:
    address = run.status().roles[index].worker
    pids = admin.run(os.getpid, workers=[address])
    return int(pids[address])


def test_an_actor_whose_worker_dies_starts_again_on_a_worker_that_joins(
    config: Config, admin: Client, tmp_path: Path
) -> None:
    with open_cluster(config) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        pids = actor_pids(tmp_path, 0)
        os.kill(worker_pid(admin, run, 1), signal.SIGKILL)
        actor_pids(tmp_path, 0, generation=1)
        wait_for(lambda: not any(alive(pid) for pid in pids), "the first actor is gone")
        assert run.status().restarts == 1
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert not left_over(tmp_path)


def test_a_retired_worker_takes_its_actor_along_in_order(
    config: Config, admin: Client, tmp_path: Path
) -> None:
    notes: list[str] = []
    with (
        open_cluster(config) as client,
        Run(client, config, SPEC, tmp_path, on_note=notes.append, **MODULES) as run,
    ):
        pids = actor_pids(tmp_path, 0)
        admin.retire_workers([run.status().actors[0].worker], close_workers=True, remove=True)
        wait_for(lambda: not any(alive(pid) for pid in pids), "the actor has ended")
        wait_for(lambda: run.status().actors[0].state == "waiting", "the actor waits for a worker")
        assert run.status().phase == "running"
        assert any(note.startswith("actor-0 was ") and "starting generation 1" in note for note in notes)
    assert not left_over(tmp_path)


def test_a_learner_whose_worker_dies_is_placed_again_and_its_actor_stays(
    config: Config, admin: Client, tmp_path: Path
) -> None:
    notes: list[str] = []
    with (
        open_cluster(config) as client,
        Run(client, config, SPEC, tmp_path, on_note=notes.append, **MODULES) as run,
    ):
        pids = actor_pids(tmp_path, 0)
        first = learner_pid(tmp_path)
        os.kill(worker_pid(admin, run, 0), signal.SIGKILL)
        learner_pid(tmp_path, generation=1)
        told = tmp_path / "train-0.told"
        wait_for(lambda: told.exists() and told.read_text() == "127.0.0.1:2", "the actor hears of it")
        assert all(alive(pid) for pid in pids)
        assert any("the learner was lost with its worker tcp://" in note for note in notes)
        wait_for(lambda: not alive(first), "the first learner, an orphan, is gone")
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    wait_for(lambda: not left_over(tmp_path), "every role is gone")


def test_a_retired_worker_hands_its_learner_on(config: Config, admin: Client, tmp_path: Path) -> None:
    with open_cluster(config) as client, Run(client, config, SPEC, tmp_path, **MODULES) as run:
        actor_pids(tmp_path, 0)
        first = learner_pid(tmp_path)
        admin.retire_workers([run.status().learner.worker], close_workers=True, remove=True)
        learner_pid(tmp_path, generation=1)
        wait_for(lambda: not alive(first), "the first learner has ended")
        wait_for(lambda: run.status().phase == "running", "the run goes on")
        assert (run.status().learner_restarts, run.status().restarts) == (1, 0)
    wait_for(lambda: not left_over(tmp_path), "every role is gone")

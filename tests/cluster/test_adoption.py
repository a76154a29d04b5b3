"""A run whose driver has died, and which another driver goes on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client
from rosters import ACTOR, CONFIG, LEARNER, OTHER, WORKERS, endpoint, state
from scripted_runs import (
    MODULES,
    SPEC,
    actor_pids,
    alive,
    learner_pid,
    left_over,
    make_config,
    processes_of,
    wait_for,
)

from seedflow.cluster import Adoption, Run, open_cluster
from seedflow.cluster.launch import RoleId
from seedflow.cluster.placement import Place
from seedflow.cluster.roster import Cancel, Found, Roster, Submit
from seedflow.errors import RunFailed

SCRIPT = Path(__file__).parent / "scripted" / "scripted_driver.py"


@pytest.fixture
def orphaned(user_client: Client, tmp_path: Path) -> Iterator[Adoption]:
    """A run of two actors that outlives its driver, which was killed."""
    command = [sys.executable, str(SCRIPT), str(tmp_path), user_client.scheduler.address, "outlives"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("started"):
                break
        for index in range(2):
            actor_pids(tmp_path, index)
        driver.kill()
    yield Adoption(line.split()[1], {"learner-0": 0, "actor-0": 0, "actor-1": 0})
    for pid in left_over(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_roles_outlive_the_driver_and_another_one_takes_over(
    user_client: Client, tmp_path: Path, orphaned: Adoption
) -> None:
    config = make_config()
    before = processes_of(tmp_path)
    with (
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, outlives_driver=True, adoption=orphaned, **MODULES) as run,
    ):
        assert left_over(tmp_path) == before  # nobody has noticed
        status = run.status()
        assert (run.id, status.phase, status.restarts, status.learner_restarts) == (
            orphaned.run,
            "running",
            0,
            0,
        )
        assert {role.pid for role in status.roles} <= before
        os.kill(actor_pids(tmp_path, 0)[0], signal.SIGKILL)  # it is driven again
        actor_pids(tmp_path, 0, generation=1)
        os.kill(learner_pid(tmp_path), signal.SIGKILL)
        learner_pid(tmp_path, generation=1)
        wait_for(lambda: run.status().phase == "running", "the next learner")
        (tmp_path / "finish").touch()
        assert run.wait(timeout=60)
    assert not left_over(tmp_path)
    wait_for(lambda: not any(user_client.processing().values()), "no task is left")


def test_what_was_lost_meanwhile_is_started_again(
    user_client: Client, tmp_path: Path, orphaned: Adoption
) -> None:
    os.kill(actor_pids(tmp_path, 1)[0], signal.SIGKILL)
    wait_for(lambda: not alive(actor_pids(tmp_path, 1)[0]), "the actor is gone")
    config = make_config()
    with (
        open_cluster(config, user_client) as client,
        Run(client, config, SPEC, tmp_path, outlives_driver=True, adoption=orphaned, **MODULES) as run,
    ):
        actor_pids(tmp_path, 1, generation=1)
        assert alive(actor_pids(tmp_path, 0)[0])
        run.stop()
    assert not left_over(tmp_path)
    wait_for(lambda: not any(user_client.processing().values()), "no task is left")


def test_another_driver_stops_what_the_first_one_has_started(
    user_client: Client, tmp_path: Path, orphaned: Adoption
) -> None:
    config = make_config()
    with (
        open_cluster(config, user_client) as client,
        Run(
            client,
            config,
            SPEC,
            tmp_path,
            outlives_driver=True,
            adoption=orphaned,
            stop_wanted=lambda: True,
            **MODULES,
        ) as run,
    ):
        assert run.wait(timeout=60)
        assert run.stopped_on_request
    assert not left_over(tmp_path)
    assert (tmp_path / "learner.stopped").read_text() == "in order"


def test_a_run_of_which_nothing_lives_cannot_be_taken_over(user_client: Client, tmp_path: Path) -> None:
    config = make_config()
    gone = Adoption("0000", {"learner-0": 0})
    with (
        open_cluster(config, user_client) as client,
        pytest.raises(RunFailed, match="none of its processes is left on the Dask cluster"),
    ):
        Run(client, config, SPEC, tmp_path, outlives_driver=True, adoption=gone, **MODULES).start()


def found(role: RoleId, generation: int, worker: int, running: bool = True) -> Found:
    place = Place(WORKERS[worker].address, WORKERS[worker].host)
    began = {"host": "h", "pid": 1, "log_path": "l"}
    at = dict(endpoint().content) if role == LEARNER and running else None
    return Found(role, generation, f"a{generation}", place, began, at, running)


def adopted(*starts: Found, generations: dict[str, int]) -> tuple[Roster, list[object]]:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.adopt(starts, generations, 0.0)
    return roster, list(roster.advance(0.0))


def test_the_latest_start_of_each_role_counts_and_older_ones_are_cancelled() -> None:
    roster, commands = adopted(
        found(ACTOR, 3, 1),
        found(ACTOR, 2, 2),
        found(OTHER, 0, 2),
        found(LEARNER, 0, 0),
        generations={"learner-0": 0, "actor-0": 3, "actor-1": 0},
    )
    assert commands == [Cancel(ACTOR, 2)]
    assert roster.phase == "running"
    assert (state(roster, ACTOR), state(roster, OTHER)) == (("running", 3), ("running", 0))


def test_a_start_that_is_gone_is_not_used_again() -> None:
    roster, commands = adopted(
        found(ACTOR, 3, 1), found(LEARNER, 0, 0), generations={"learner-0": 0, "actor-0": 4, "actor-1": 7}
    )
    assert commands[:2] == [Cancel(ACTOR, 4), Cancel(OTHER, 7)]
    generations = {command.role: command.generation for command in commands if isinstance(command, Submit)}
    assert generations == {ACTOR: 5, OTHER: 8}
    assert roster.phase == "running"


def test_a_learner_that_was_lost_meanwhile_is_placed_first() -> None:
    roster, commands = adopted(found(ACTOR, 0, 1), found(OTHER, 0, 2), generations={"learner-0": 2})
    cancel, submit = commands
    assert cancel == Cancel(LEARNER, 2)
    assert isinstance(submit, Submit)
    assert (submit.role, submit.generation) == (LEARNER, 3)
    assert (roster.phase, state(roster, ACTOR)) == ("starting", ("running", 0))

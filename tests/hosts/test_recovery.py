"""A run on three hosts that lose workers, their network, their driver: it heals by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedflow.driver_record import DriverRecord
from seedflow.run_dir import in_use
from tests.hosts.lab import lab, until
from tests.hosts.training import ACTORS, Training, trained

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, for hosts of its own"),
]


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    with lab(tmp_path) as hosts, trained(hosts) as run:
        yield run


def an_actors_worker_is_killed(run: Training) -> None:
    before = run.counts()
    assert before is not None
    run.kill_worker(run.worker_of("actor-0"))
    until(lambda: run.generation("actor-0") == 1, "the actor to be started again")
    after = run.until_whole("the actor to be back")
    assert after.learner_restarts == before.learner_restarts
    assert after.steps > before.steps


def the_gateway_is_killed(run: Training) -> None:
    before = run.counts()
    assert before is not None
    (gateway,) = run.lab.family("seedflow.rpc.gateway")
    os.kill(gateway, signal.SIGKILL)
    until(lambda: (now := run.counts()) and now.gateway_restarts > before.gateway_restarts, "the restart")
    after = run.until_whole("the remote actors to be back")
    assert (after.learner_restarts, after.actor_restarts) == (before.learner_restarts, before.actor_restarts)


def the_learners_worker_is_killed(run: Training) -> None:
    generation = run.generation("learner-0")
    address = run.worker_of("learner-0")
    run.kill_worker(address)
    run.until_whole("the next learner and its actors", learner_restarts=generation + 1)


def a_nanny_starts_its_worker_again(run: Training) -> None:
    before = run.generation("actor-1")
    run.client.restart_workers([run.worker_of("actor-1")], timeout=120, raise_for_error=False)
    until(lambda: run.generation("actor-1") > before, "the actor to be started again")
    run.until_whole("the actor to be back")


def the_learners_worker_is_retired(run: Training) -> None:
    generation = run.generation("learner-0")
    address = run.worker_of("learner-0")
    host = run.host_of(address)
    run.client.retire_workers([address], close_workers=True, remove=True)
    run.until_whole("the next learner and its actors", learner_restarts=generation + 1)
    host.worker()  # another one in its place


def the_learners_host_is_cut_off_and_healed(run: Training) -> None:
    generation = run.generation("learner-0")
    address = run.worker_of("learner-0")
    host = run.host_of(address)
    run.make_room_without(host)
    host.cut()
    run.until_gone(address)
    run.until_whole("the next learner and its actors", learner_restarts=generation + 1)
    host.heal()
    log = run.dir / "logs" / f"learner-0-g{generation}.log"
    until(lambda: len(run.lab.family("seedflow.learner")) == 1, "the stale learner to end")
    assert "Traceback" not in log.read_text().partition("CheckpointFenced")[0]
    host.worker()


def an_actors_host_is_cut_off_and_healed(run: Training) -> None:
    roles = [role for role in ("actor-0", "actor-1") if not _beside_the_learner(run, role)]
    if not roles:
        return  # both are on the learner's host by now
    address = run.worker_of(roles[0])
    before = run.generation(roles[0])
    host = run.host_of(address)
    run.make_room_without(host)
    host.cut()
    run.until_gone(address)
    until(lambda: run.generation(roles[0]) > before, "the actor to be started again")
    run.until_whole("the actor to be back")
    host.heal()
    host.worker()
    until(lambda: len(run.lab.family("seedflow.actor")) == ACTORS, "the stale actor to end")


def _beside_the_learner(run: Training, role: str) -> bool:
    return run.host_of(run.worker_of(role)) is run.host_of(run.worker_of("learner-0"))


def the_driver_is_killed_and_the_run_attached_to_again(run: Training) -> None:
    before, record = run.counts(), DriverRecord.read(run.dir)
    assert before is not None
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    until(lambda: not in_use(run.dir), "the driver to be gone")
    run.until_whole("training to go on without it", learner_restarts=before.learner_restarts)
    follower = run.background("attach", str(run.dir))
    until(lambda: in_use(run.dir), "another driver")
    until(lambda: "starting another one" in run.lab.output(follower), "the follower's word of it")
    generations = run.actor_generations()
    os.kill(min(run.lab.family("seedflow.actor")), signal.SIGKILL)  # which shows that the run is driven again
    until(lambda: run.actor_generations() > generations, "the actor to be started again")
    run.until_whole("the actor to be back", learner_restarts=before.learner_restarts)
    run.program("stop", str(run.dir))
    assert follower.wait(120) == 143
    assert "go on with: seedflow train --resume" in run.lab.output(follower)
    until(lambda: not run.lab.family("seedflow.actor") + run.lab.family("seedflow.learner"), "all to be gone")
    assert not run.client.processing() or not any(run.client.processing().values())


def test_a_run_on_three_hosts_survives_one_fault_after_the_other(training: Training) -> None:
    for fault in (
        an_actors_worker_is_killed,
        the_gateway_is_killed,
        the_learners_worker_is_killed,
        a_nanny_starts_its_worker_again,
        the_learners_worker_is_retired,
        the_learners_host_is_cut_off_and_healed,
        an_actors_host_is_cut_off_and_healed,
        the_driver_is_killed_and_the_run_attached_to_again,
    ):
        print(fault.__name__, flush=True)
        fault(training)
        training.check_history()
        training.check_leases()

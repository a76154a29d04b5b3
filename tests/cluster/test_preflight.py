"""What is found out about a cluster before a role is started there."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from scripted_runs import MODULES, SPEC, make_config, wait_for

from seedflow.cluster import Preflight, Run, open_cluster, reach, survey
from seedflow.cluster.addresses import address_to_bind
from seedflow.cluster.placement import WorkerInfo, plan, workers_of
from seedflow.cluster.preflight import check_memory, check_run_dir
from seedflow.cluster.reach import check_reach
from seedflow.cluster.survey import Survey
from seedflow.config import Config
from seedflow.errors import PlacementError
from seedflow.learner.footprint import Footprint

GIB = 1 << 30
WORKER = WorkerInfo("tcp://10.0.0.1:4000", "10.0.0.1", memory_limit=8 * GIB)


def workers_in(client: Client) -> tuple[WorkerInfo, ...]:
    return workers_of(client.scheduler_info(n_workers=-1))


def check(client: Client, marker: Path, config: Config | None = None) -> list[str]:
    """Run all checks on a cluster; returns what is odd."""
    config = config or make_config(actor={"count": 1})
    told: list[str] = []
    workers = workers_in(client)
    Preflight(client, config, SPEC, told.append).check(plan(workers, config), workers, marker)
    return told


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    path = tmp_path / ".run-12ab"
    path.touch()
    return path


def spoil(client: Client, change: Callable[[], Any]) -> str:
    """Change a worker of a cluster; returns its address."""
    address = max(worker.address for worker in workers_in(client))
    client.run(change, workers=[address])
    return address


def test_a_cluster_that_suits_passes_without_a_word(user_client: Client, marker: Path) -> None:
    assert check(user_client, marker) == []


def test_a_worker_without_seedflow_is_named(other_cluster: str, marker: Path) -> None:
    def uninstall() -> None:
        sys.modules["seedflow"] = None  # type: ignore[assignment] # what an import then raises on

    with Client(other_cluster, set_as_default=False) as client:
        address = spoil(client, uninstall)
        message = rf"seedflow cannot be imported on 1 of 2 workers .*\({address}: .*\); install the driver's"
        with pytest.raises(PlacementError, match=message):
            check(client, marker)


def test_a_worker_with_another_release_is_shown_in_a_table(other_cluster: str, marker: Path) -> None:
    def install_another() -> None:
        sys.modules["seedflow"] = types.ModuleType("seedflow")
        sys.modules["seedflow"].__version__ = "0.0.9"  # type: ignore[attr-defined]

    with Client(other_cluster, set_as_default=False) as client:
        address = spoil(client, install_another)
        with pytest.raises(PlacementError, match=rf"(?s)seedflow is not the same.*\n  {address} +0.0.9"):
            check(client, marker)


def test_a_worker_with_other_packages_is_told(other_cluster: str, marker: Path) -> None:
    def install_another() -> None:
        import importlib.metadata

        real = importlib.metadata.version
        importlib.metadata.version = lambda name: "1.2.3" if name == "gymnasium" else real(name)

    with Client(other_cluster, set_as_default=False) as client:
        address = spoil(client, install_another)
        (odd,) = check(client, marker)
        assert odd.startswith("versions differ between this process and workers:\n")
        assert f"{address}  1.2.3" in odd


def test_a_frozen_worker_is_named(other_cluster: str, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "REPLY_SECONDS", 2.0)
    with Client(other_cluster, set_as_default=False) as client:
        address = max(worker.address for worker in workers_in(client))
        pid = client.run(os.getpid, workers=[address])[address]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(
                PlacementError, match=f"no answer within 2 s from worker {address}: it may be"
            ):
                check(client, marker)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_run_directory_that_the_learner_does_not_see(user_client: Client, tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=rf"run_dir = {tmp_path} is not the same writable directory"):
        check(user_client, tmp_path / ".run-elsewhere")


def test_a_run_directory_is_named_with_the_learners_host() -> None:
    with pytest.raises(PlacementError) as error:
        check_run_dir(WORKER, Survey(sees_run_dir=False), Path("/home/me/runs/a/.run-12ab"))
    assert str(error.value) == (
        "run_dir = /home/me/runs/a is not the same writable directory on this host and on the learner's, "
        "10.0.0.1 (worker tcp://10.0.0.1:4000): checkpoints and metrics are written there; choose --run-dir "
        "on a file system that both share, or start the driver on that host as the same user"
    )


def test_more_memory_than_the_host_has() -> None:
    needs = Footprint(slab=GIB, experience=2 * GIB, replay=32 * GIB)
    with pytest.raises(PlacementError) as error:
        check_memory(WorkerInfo("tcp://10.0.0.1:4000", "10.0.0.1"), Survey(memory=16 * GIB), needs)
    assert str(error.value) == (
        "the learner on 10.0.0.1 (worker tcp://10.0.0.1:4000) needs at least 35 GiB (1 GiB for the slab, 32 "
        "GiB for the replay, 2 GiB for unrolls and batches), but the host has 16 GiB; choose a larger host, "
        "or lower replay.capacity, replay.memory_gib, train.batch, rollout.queue or actor.envs_per_group"
    )


def test_more_memory_than_the_workers_limit() -> None:
    message = (
        r"but the worker's memory limit is 8 GiB; start the learner's worker with a larger --memory-limit"
    )
    with pytest.raises(PlacementError, match=message):
        check_memory(WORKER, Survey(memory=64 * GIB), Footprint(slab=0, experience=0, replay=9 * GIB))


def test_unrolls_on_a_gpu_are_not_counted() -> None:
    needs = Footprint(slab=GIB, experience=32 * GIB, replay=0)
    check_memory(WORKER, Survey(memory=16 * GIB, gpu=True), needs)


def test_a_replay_larger_than_the_machine_is_refused_before_anything_starts(
    user_client: Client, marker: Path
) -> None:
    config = make_config(algo={"name": "r2d2"}, replay={"memory_gib": 1e6})
    with pytest.raises(PlacementError, match=r"1e\+06 GiB for the replay.*, but the host has"):
        check(user_client, marker, config)


def test_shared_memory_alone_does_not_reach_another_host(user_client: Client) -> None:
    config = make_config(rpc={"path": "slab"}, actor={"count": 1})
    placement = plan((WORKER, WorkerInfo("tcp://10.0.0.2:4000", "10.0.0.2", memory_limit=GIB)), config)
    message = (
        r"rpc.path = 'slab' .* actors would be on 10.0.0.2 and the learner on 10.0.0.1; use rpc.path=auto"
    )
    with pytest.raises(PlacementError, match=message):
        Preflight(user_client, config, SPEC, print).check_paths(placement, {})


def test_an_address_that_actors_reach(user_client: Client) -> None:
    learner, *others = (worker.address for worker in workers_in(user_client))
    check_reach(user_client, learner, None, None, others)
    left = user_client.run(lambda dask_worker: [name for name in vars(dask_worker) if "seedflow" in name])
    assert not any(left.values())


def test_an_address_that_actors_do_not_reach(user_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    def listen(*_: object) -> Callable[[], tuple[str, int]]:
        return lambda: ("127.0.0.1", port)

    monkeypatch.setattr(reach, "_listen", listen)
    learner, other, *_ = (worker.address for worker in workers_in(user_client))
    message = (
        rf"actors cannot reach the learner at 127.0.0.1:{port} from 1 of 1 hosts: {other}: .*Connect "
        "call failed.* by rpc.interface .* name it in rpc.ports"
    )
    with pytest.raises(PlacementError, match=message):
        check_reach(user_client, learner, None, None, [other])


def test_ports_that_are_all_taken(user_client: Client) -> None:
    learner, other, *_ = (worker.address for worker in workers_in(user_client))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = rf"worker {learner} cannot listen for its actors: .*rpc.ports = \[{port}, {port}\]"
        with pytest.raises(PlacementError, match=message):
            check_reach(user_client, learner, None, (port, port), [other])


def test_an_interface_by_name() -> None:
    assert address_to_bind("lo", "10.0.0.1") == "127.0.0.1"
    assert address_to_bind("127.0.0.1", "10.0.0.1") == "127.0.0.1"
    assert address_to_bind(None, "10.0.0.1") == "10.0.0.1"


@pytest.mark.parametrize("wrong", ["ib7", "192.0.2.1", "0.0.0.0"])
def test_an_interface_that_the_host_does_not_have(wrong: str) -> None:
    message = rf"rpc.interface = '{wrong}' is neither a network interface nor an address of .* lo \(127.0.0.1"
    with pytest.raises(PlacementError, match=message):
        address_to_bind(wrong, "10.0.0.1")


def test_what_the_checks_find_ends_a_run_before_a_role_starts(user_client: Client, tmp_path: Path) -> None:
    config = make_config(algo={"name": "r2d2"}, replay={"memory_gib": 1e6})
    with open_cluster(config, user_client) as client:
        preflight = Preflight(client, config, SPEC, print)
        began = time.monotonic()
        with pytest.raises(PlacementError, match="for the replay"):
            Run(client, config, SPEC, tmp_path, preflight=preflight, **MODULES).start()
        assert time.monotonic() - began < config.cluster.worker_seconds
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: not [key for key in user_client.who_has() if "seedflow" in key], "no key left")

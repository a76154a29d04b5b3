"""Dask clusters whose processes are ranks of MPI, as dask-mpi starts them under a real ``mpirun``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.debian import install
from tests.hosts.lab import INTERFACE, PROGRAM, Lab, lab, until
from tests.runs.rig import PROMISED_SECONDS, Launcher, launcher, manifests, progress, steps

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, for hosts of its own"),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mpi.py"
DASK_MPI = Path(sys.executable).with_name("dask-mpi")
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")


@pytest.fixture(scope="module", autouse=True)
def _mpi() -> None:
    install(["mpirun", "ip", "nsenter"], ["openmpi-bin", "iproute2", "util-linux"])


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    with launcher(tmp_path) as started:
        yield started


def mpirun(hosts: Lab, ranks: int, *command: str) -> list[str]:
    """The command that runs a program on the hosts of a lab, which are entered in place of ssh."""
    agent = hosts.directory / "agent"
    cases = "\n".join(f'{host.address}) shift; exec {host.entering} sh -c "$*";;' for host in hosts.hosts)
    agent.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}\nesac\necho "no host $1" >&2\nexit 1\n')
    agent.chmod(0o755)
    places = ",".join(f"{host.address}:2" for host in hosts.hosts)
    options = ["--host", places, "-n", str(ranks), "--mca", "plm_rsh_agent", str(agent)]
    for layer in ("oob_tcp_if_include", "btl_tcp_if_include"):
        options += ["--mca", layer, f"{hosts.net}.0/24"]
    return [*MPIRUN, *options, *command]


def host_in(log: Path) -> str:
    """Where a role was, as the first line of its log says."""
    return log.read_text().partition(" on ")[2].partition(",")[0]


def test_ranks_on_three_hosts_are_a_cluster_for_the_command_line(tmp_path: Path) -> None:
    with lab(tmp_path) as hosts:
        file, run_dir = tmp_path / "mpi.json", tmp_path / "run"
        cluster = hosts.start(
            *mpirun(hosts, 6, str(DASK_MPI), "--scheduler-file", str(file), "--interface", INTERFACE),
            *("--nthreads", "1", "--memory-limit", "0", "--no-dashboard"),
            *("--local-directory", str(hosts.temporary)),
        )
        training = hosts.start(
            *(str(PROGRAM), "train", "cartpole_vtrace", "--scheduler-file", str(file)),
            *("--run-dir", str(run_dir), "actor.count=4", "train.total_agent_steps=20000"),
            *("cluster.worker_seconds=240", "cluster.learner_seconds=240", "cluster.connect_seconds=240"),
            "actor.reconnect_seconds=240",
        )
        assert training.wait(600) == 0, hosts.output(training) + hosts.output(cluster)
        assert progress(run_dir)["agent_steps"] >= 20_000
        (learners_host,) = {host_in(path) for path in (run_dir / "logs").glob("learner-*.log")}
        actors = sorted((run_dir / "logs").glob("actor-*.log"))
        assert len({learners_host, *map(host_in, actors)}) == 3
        for path in actors:
            way = "Slab" if host_in(path) == learners_host else "Grpc"
            assert f"over {way}Connection" in path.read_text()
        assert hosts.family(str(DASK_MPI)), "the cluster is its owner's, and stays"
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(120)
        until(lambda: not hosts.family(str(DASK_MPI)), "the ranks to end")


def test_a_program_of_mpi_trains_on_its_own_ranks(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    command = (sys.executable, str(EXAMPLE), "--steps", "20000", "--run-dir", str(run_dir))
    launched = launch(*MPIRUN, "-n", "5", *command)
    assert launched.wait(600) == 0, launched.out + launched.err
    launched.check_gone(PROMISED_SECONDS)
    assert "Finished 20," in launched.out
    assert progress(run_dir)["agent_steps"] >= 20_000


def test_a_program_of_mpi_that_is_ended_has_saved(launch: Launcher) -> None:
    """MPI kills its ranks a second after SIGTERM: the learner, which is none, saves by itself."""
    run_dir = launch.directory / "run"
    command = (sys.executable, str(EXAMPLE), "--steps", "1000000000", "--run-dir", str(run_dir))
    launched = launch(*MPIRUN, "-n", "5", *command)
    launched.until(lambda: steps(run_dir) > 1000, "training")
    launched.send(signal.SIGTERM)
    assert launched.wait(120) != 0
    launched.check_gone(PROMISED_SECONDS)
    assert manifests(run_dir)
    assert progress(run_dir)["agent_steps"] > 1000

"""Containers often have one host name and a /dev/shm each: what counts is what an actor can reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.hosts.lab import lab
from tests.hosts.training import Training

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, for hosts of its own"),
]


def test_two_containers_of_one_name_fall_back_to_grpc(tmp_path: Path) -> None:
    with lab(tmp_path, "node", "node") as hosts:
        hosts.hosts[0].worker("--nworkers", "2")
        hosts.hosts[1].worker()
        with hosts.client() as client:
            client.wait_for_workers(3, timeout=300)
            run = Training(hosts, client)
            learner = run.host_of(run.worker_of("learner-0"))
            for role in ("actor-0", "actor-1"):
                same = run.host_of(run.worker_of(role)) is learner
                path = "SlabConnection" if same else "GrpcConnection"
                log = (run.dir / "logs" / f"{role}-g0.log").read_text()
                assert " on node, " in log
                assert f"over {path}" in log
            run.program("stop", str(run.dir))
            run.check_history()

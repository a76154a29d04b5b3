"""A whole run on a Dask cluster with TLS: its certificates secure the stream between actors and learner."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import seedflow
from seedflow.config import parse_config
from tests.rpc.certificates import authority
from tests.runs.rig import TINY


def security(paths: dict[str, str]) -> Security:
    ends = ("client", "scheduler", "worker")
    certificates = {f"tls_{end}_cert": paths["certificate"] for end in ends}
    keys = {f"tls_{end}_key": paths["key"] for end in ends}
    return Security(tls_ca_file=paths["authority"], require_encryption=True, **certificates, **keys)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_stream_takes_the_certificates_of_the_workers(tmp_path: Path) -> None:
    credentials = security(authority("cluster").files(tmp_path, common="our cluster"))
    config = parse_config({**TINY, "rpc": {"path": "grpc"}, "metrics": {**TINY["metrics"], "console": "off"}})
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, security=credentials, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        run = seedflow.train(config, client=client, run_dir=tmp_path / "run")
    logs = run.dir / "logs"
    assert "over GrpcConnection, encrypted" in (logs / "actor-0-g0.log").read_text()
    key = Path(credentials.tls_worker_key).read_text().splitlines()[1]
    assert not [path for path in run.dir.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]

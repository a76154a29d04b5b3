"""Finding the Dask cluster of a run."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from seedflow.cluster import open_cluster
from seedflow.cluster.connect import local_size
from seedflow.config import Config
from seedflow.errors import ConfigError, PlacementError, SeedflowError


def settings(**cluster: object) -> Config:
    return Config.model_validate({"runtime": "cluster", "cluster": {"connect_seconds": 1.0, **cluster}})


def fails(config: Config, message: str, error: type[SeedflowError] = PlacementError) -> None:
    with pytest.raises(error, match=message), open_cluster(config):
        pass


@pytest.fixture
def deaf_address() -> Iterator[str]:
    """Address of something that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "way", ["setting", "file", "dask's own setting", "default client", "client", "address"]
)
def test_a_cluster_is_found(way: str, user_client: Client, tmp_path: Path) -> None:
    address = user_client.scheduler.address
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": address}))
    config = {
        "setting": settings(scheduler=address, connect_seconds=30),
        "file": settings(scheduler_file=str(file), connect_seconds=30),
    }.get(way, settings(connect_seconds=30))
    own_setting = address if way == "dask's own setting" else None
    given = {"client": user_client, "address": address}.get(way)
    by_default = user_client.as_current() if way == "default client" else nullcontext()
    with (
        by_default,
        dask.config.set({"scheduler-address": own_setting}),
        open_cluster(config, given) as client,
    ):
        assert client is not user_client
        assert client.submit(sum, [1, 2], pure=False).result(timeout=60) == 3
    assert client.status == "closed"
    assert user_client.status == "running"


def test_a_cluster_object_is_as_good_as_a_client_and_stays_open() -> None:
    arguments = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**arguments, protocol="tcp://") as cluster:
        with open_cluster(settings(connect_seconds=30), cluster) as client:
            assert client.scheduler.address == cluster.scheduler_address
            assert client.submit(sum, [1, 2], pure=False).result(timeout=60) == 3
        assert cluster.status.name == "running"
    with pytest.raises(PlacementError, match="the Dask cluster is closed: expected one that is connected"):
        open_cluster(settings(), cluster).__enter__()


def test_an_asynchronous_client_is_as_good_as_another(user_client: Client) -> None:
    async def use() -> int:
        address = user_client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as mine:
            with open_cluster(settings(connect_seconds=30), mine) as client:
                assert not client.asynchronous
                result = client.submit(sum, [1, 2], pure=False).result(timeout=60)
            assert mine.status == "running"
            return int(result)

    assert asyncio.run(use()) == 3


def test_a_client_implies_its_cluster_whatever_the_runtime(user_client: Client) -> None:
    with open_cluster(Config(), user_client) as client:
        assert client.scheduler.address == user_client.scheduler.address


def test_no_cluster_is_named() -> None:
    with dask.config.set({"scheduler-address": None}):
        message = r"set cluster.scheduler or .*, export DASK_SCHEDULER_ADDRESS, or use runtime=local"
        fails(settings(), message, ConfigError)


def test_a_silent_scheduler_is_named_with_the_time_it_had(deaf_address: str) -> None:
    fails(
        settings(scheduler=deaf_address), f"answered at {deaf_address} within 1 s \\(cluster.connect_seconds"
    )


def test_an_address_that_is_none(user_client: Client) -> None:
    message = "cannot connect .*; expected an address like tcp://"
    fails(settings(scheduler="carrier-pigeon://roof"), message, ConfigError)


@pytest.mark.parametrize("content", [None, "", '{"address'])
def test_a_scheduler_file_that_is_missing_or_incomplete(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    if content is not None:
        file.write_text(content)
    message = rf"cluster.scheduler_file = {file}: .* within 0.5 s .* `dask scheduler --scheduler-file {file}`"
    fails(settings(scheduler_file=str(file), connect_seconds=0.5), message)


def test_a_tls_scheduler_without_certificates_names_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": "tls://10.0.0.1:8786"}))
    fails(
        settings(scheduler_file=str(file)),
        r"names tls://10.0.0.1:8786, which needs TLS, .* set cluster.tls_ca_file, cluster.tls_cert and",
        ConfigError,
    )


def test_a_certificate_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "ca.pem")
    fails(
        settings(scheduler="tls://10.0.0.1:8786", tls_ca_file=missing),
        f"cluster.tls_ca_file = {missing} is no file",
        ConfigError,
    )


@pytest.mark.parametrize(
    ("actors", "workers", "size"), [(3, None, (4, 1)), (4, 3, (3, 2)), (5, 3, (3, 3)), (5, 1, (1, 1))]
)
def test_the_local_cluster_has_a_place_for_every_role(
    actors: int, workers: int | None, size: tuple[int, int]
) -> None:
    tree = {"actor": {"count": actors}, "cluster": {"local_workers": workers}}
    assert local_size(Config.model_validate(tree)) == size

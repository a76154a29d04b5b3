"""A cluster of worker processes that stands for a user's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client

SCRIPTED = Path(__file__).parent / "scripted"
sys.path.insert(0, str(SCRIPTED))


@contextlib.contextmanager
def _cluster(*arguments: str) -> Iterator[str]:
    command = [sys.executable, str(SCRIPTED / "user_cluster.py"), *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("tcp://"), "the cluster did not start"
        yield address
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def scripted_roles() -> Iterator[None]:
    """Role processes find the scripted roles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(SCRIPTED), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def user_client(scripted_roles: None) -> Iterator[Client]:
    """A client, as a user has it, of a cluster of three worker processes of one thread each."""
    with _cluster("3") as address, Client(address, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)
        client.submit(sum, [1, 2]).result(timeout=60)
        yield client


@pytest.fixture
def other_cluster(scripted_roles: None) -> Iterator[str]:
    """Address of a cluster of two workers whose workers a test may kill."""
    with _cluster("2") as address:
        yield address


@pytest.fixture
def gpu_cluster(scripted_roles: None) -> Iterator[str]:
    """Address of a cluster of two workers that declare a GPU and two places for actors each."""
    with _cluster("2", "1", '{"GPU": 1, "ACTOR": 2}') as address:
        yield address


@pytest.fixture
def dask_cuda_worker(scripted_roles: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a cluster of one worker that shows its devices as dask-cuda does: its own one first."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,0")
    with _cluster("1", "4", '{"GPU": 1}') as address:
        yield address

"""Settings from Dask's configuration."""

from __future__ import annotations

import os
import subprocess
import sys

import dask
import pytest

from seedflow.cluster.dask_settings import with_dask_settings
from seedflow.config import load_config
from seedflow.errors import ConfigError


def test_without_any_the_config_stays() -> None:
    config = load_config("cartpole_vtrace")
    assert with_dask_settings(config) is config


def test_they_fill_in_what_a_configuration_leaves_open() -> None:
    config = load_config("cartpole_vtrace", {"rpc.path": "grpc", "seed": 7})
    site = {"seed": 3, "rpc": {"path": "slab", "ports": [9000, 9010]}, "cluster": {"worker-seconds": 300}}
    with dask.config.set(seedflow=site):
        filled = with_dask_settings(config)
    assert (filled.seed, filled.rpc.path) == (7, "grpc")
    assert filled.rpc.ports == (9000, 9010)
    assert filled.cluster.worker_seconds == 300
    assert filled.train == config.train


def test_a_scheduler_there_implies_the_cluster() -> None:
    with dask.config.set(seedflow={"cluster": {"scheduler_file": "/shared/scheduler.json"}}):
        assert with_dask_settings(load_config("cartpole_vtrace")).runtime == "cluster"


def test_a_mistake_there_is_named() -> None:
    with dask.config.set(seedflow={"rpc": {"portz": [1, 2]}}):
        message = (
            r"rpc.portz = .* \(Dask's configuration, seedflow\): no such setting; did you mean rpc.ports\?"
        )
        with pytest.raises(ConfigError, match=message):
            with_dask_settings(load_config("cartpole_vtrace"))
    with dask.config.set(seedflow="ib0"), pytest.raises(ConfigError, match="expected sections of settings"):
        with_dask_settings(load_config("cartpole_vtrace"))


def test_they_come_from_variables_of_the_environment() -> None:
    program = (
        "from seedflow.config import Config; from seedflow.cluster.dask_settings import with_dask_settings; "
        "config = with_dask_settings(Config()); print(config.rpc.interface, *config.rpc.ports)"
    )
    variables = {"DASK_SEEDFLOW__RPC__INTERFACE": "ib0", "DASK_SEEDFLOW__RPC__PORTS": "[9000, 9010]"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "ib0 9000 9010\n"

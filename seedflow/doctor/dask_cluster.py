"""A Dask cluster: its workers, what they declare, whether their versions agree, and who would go where."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, cast

import dask

from seedflow.cluster import WorkerInfo, open_cluster
from seedflow.cluster.placement import workers_of
from seedflow.cluster.resources import ACTOR, GPU, LEARNER
from seedflow.config import Config
from seedflow.doctor.finding import Finding
from seedflow.errors import ConfigError, PlacementError
from seedflow.replay.memory import gib

MUST_AGREE = ("dask", "distributed", "cloudpickle", "msgpack")


def names_a_cluster(config: Config) -> bool:
    """Whether settings or environment say where a Dask scheduler is."""
    given = config.cluster.scheduler or config.cluster.scheduler_file
    named = dask.config.get("scheduler-address", None) or dask.config.get("scheduler-file", None)
    return bool(given or named or os.environ.get("DASK_SCHEDULER_ADDRESS"))


def look_at_cluster(config: Config) -> Iterator[Finding]:
    """The cluster that the settings name."""
    try:
        with open_cluster(config) as client:
            info = client.scheduler_info(n_workers=-1)
            workers = workers_of(info)
            yield Finding("dask", "scheduler", info["address"], f"{info['address']} answers")
            yield from _workers(workers)
            if workers:
                yield _versions(cast(Mapping[str, Any], client.get_versions(check=False)))
                yield _seedflow(client.run(installed_seedflow, on_error="return"))
    except (ConfigError, PlacementError) as error:
        remedy = "dask scheduler --scheduler-file FILE, then dask worker --scheduler-file FILE"
        yield Finding("dask", "scheduler", None, str(error), "problem", remedy)


def installed_seedflow() -> str | None:
    """The version of seedflow where this runs; None where there is none. Needs no seedflow to run."""
    import importlib.metadata

    try:
        return importlib.metadata.version("seedflow")
    except importlib.metadata.PackageNotFoundError:
        return None


def _workers(workers: tuple[WorkerInfo, ...]) -> Iterator[Finding]:
    if not workers:
        remedy = "dask worker SCHEDULER_ADDRESS"
        yield Finding("dask", "workers", [], "none", "problem", remedy)
        return
    for worker in workers:
        memory = gib(worker.memory_limit) if worker.memory_limit else "no limit"
        declared = " ".join(f"{name}={amount:g}" for name, amount in worker.resources.items()) or "nothing"
        state = "" if worker.running else ", paused or leaving"
        text = f"{worker.host}: {worker.nthreads} threads, memory {memory}, declares {declared}{state}"
        value = {
            "host": worker.host,
            "threads": worker.nthreads,
            "memory_limit": worker.memory_limit,
            "resources": dict(worker.resources),
            "running": worker.running,
        }
        yield Finding("dask", worker.address, value, text)
    yield _places(workers)


def _places(workers: tuple[WorkerInfo, ...]) -> Finding:
    """How many actors would find a place beside the learner."""
    running = [worker for worker in workers if worker.running]
    learner = any(worker.declares({LEARNER: 1}) or worker.declares({GPU: 1}) for worker in running)
    declared = [worker for worker in running if worker.declares({ACTOR: 1})]
    if declared:
        places = sum(int(worker.resources[ACTOR]) for worker in declared)
    elif len(running) > 1:
        threads = sorted(worker.nthreads for worker in running)
        places = sum(threads) - (threads[0] if not learner else 0)
    else:
        places = sum(worker.nthreads for worker in running)
    text = f"about {places} for actors" + ("" if learner else "; no worker declares GPU or LEARNER")
    return Finding("dask", "places", places, text)


def _versions(versions: Mapping[str, Any]) -> Finding:
    """Whether Python and what Dask needs agree everywhere."""
    hosts = {"driver": versions["client"], "scheduler": versions["scheduler"], **versions["workers"]}
    pythons = {name: ".".join(map(str, _python(host)[:2])) for name, host in hosts.items()}
    packages = {
        package: {name: host["packages"].get(package) for name, host in hosts.items()}
        for package in MUST_AGREE
    }
    differing = {
        what: found for what, found in {"python": pythons, **packages}.items() if len(set(found.values())) > 1
    }
    if differing:
        text = "; ".join(
            f"{what} is {', '.join(f'{version} on {name}' for name, version in found.items())}"
            for what, found in differing.items()
        )
        return Finding("dask", "versions", differing, text, "problem", "use one environment on all hosts")
    return Finding("dask", "versions", {}, "agree everywhere")


def _python(host: Mapping[str, Any]) -> list[str]:
    return str(host["host"]["python"]).split(".")


def _seedflow(found: Mapping[str, Any]) -> Finding:
    """Whether the workers have seedflow."""
    versions = {address: v if isinstance(v, str) else None for address, v in found.items()}
    lacking = [address for address, version in versions.items() if version is None]
    if lacking:
        text = f"not installed on {', '.join(lacking)}"
        return Finding("dask", "seedflow", versions, text, "problem", "pip install seedflow on every worker")
    text = f"{', '.join(sorted(set(filter(None, versions.values()))))} on all workers"
    return Finding("dask", "seedflow", versions, text)

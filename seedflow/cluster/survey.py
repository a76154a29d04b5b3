"""What the workers of a cluster say of themselves and their hosts, asked before a role is started there.

The questions are functions that Dask runs on the workers (`Client.run`). They are pickled by value and import
seedflow only where it is of our version, because a worker may have another one, or none. Nothing stays
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distributed import Client

import seedflow
from seedflow.cluster.asking import ask, run_on
from seedflow.cluster.placement import WorkerInfo
from seedflow.errors import PlacementError

REPLY_SECONDS = 30.0
"""How long a worker may take to answer a question."""


@dataclass(frozen=True)
class Survey:
    """What one worker has answered.

    Attributes
    ----------
    versions
        ``python`` with its minor version, and of each package its version; None where it is not installed.
    trouble
        Why seedflow cannot be imported there, if it cannot.
    sees_run_dir
        Whether a process there finds the run's directory and may write to it.
    memory
        Bytes that processes on its host may use; 0 where that is unknown.
    gpu
        Whether a learner would find a GPU there.
    """

    versions: Mapping[str, str | None] = field(default_factory=dict)
    trouble: str | None = None
    sees_run_dir: bool = False
    memory: int = 0
    gpu: bool = False


def pythons(client: Client, workers: Sequence[str]) -> dict[str, str]:
    """Python's minor version on each worker, which it must share for any function to be sent there.

    Raises
    ------
    PlacementError
        If a worker does not answer.
    """
    assert client.scheduler is not None
    broadcast = client.scheduler.broadcast
    answers = ask(
        client, workers, lambda address: broadcast(msg={"op": "versions"}, workers=[address]), REPLY_SECONDS
    )
    return {address: _minor(answer["host"]["python"]) for address, answer in _all(answers).items()}


def survey(client: Client, workers: Sequence[str], packages: Iterable[str], marker: str) -> dict[str, Survey]:
    """Ask each worker for versions of packages and what its host has.

    Parameters
    ----------
    client
        A connection; the workers run its minor version of Python.
    workers
        Addresses.
    packages
        Names of distributions.
    marker
        Path of a file that the driver has written into the run's directory.

    Raises
    ------
    PlacementError
        If a worker does not answer.
    """
    question = _question(seedflow.__version__, tuple(packages), marker)
    answers = run_on(client, workers, question, seconds=REPLY_SECONDS)
    return {address: Survey(**answer) for address, answer in _all(answers).items()}


def with_held_resources(client: Client, workers: Sequence[WorkerInfo], run: str) -> tuple[WorkerInfo, ...]:
    """The workers, and what tasks that are not of this run hold of their resources, where they answer."""
    declaring = [worker.address for worker in workers if worker.resources]
    answers = run_on(client, declaring, _holding(f"seedflow-{run}-"), seconds=REPLY_SECONDS)
    told = {address: answer for address, answer in answers.items() if not isinstance(answer, Exception)}
    return tuple(
        replace(worker, held=told[worker.address][0], holders=told[worker.address][1])
        if worker.address in told
        else worker
        for worker in workers
    )


def look_for_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The versions in this process, as `Survey.versions` has them."""
    return {**_versions()(tuple(packages)), "seedflow": seedflow.__version__}


def look_around(marker: str) -> dict[str, Any]:
    """What a worker with our seedflow can say about its host; run there, in a thread."""
    import os
    from pathlib import Path

    from seedflow.replay.memory import machine_bytes

    path = Path(marker)
    sees = path.is_file() and os.access(path.parent, os.W_OK | os.X_OK)
    gpu = Path("/proc/driver/nvidia").exists() and os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in (
        "",
        "-1",
    )
    return {"sees_run_dir": sees, "memory": machine_bytes(), "gpu": gpu}


def _question(version: str, packages: tuple[str, ...], marker: str) -> Callable[..., Any]:
    versions_of = _versions()

    def look() -> dict[str, Any]:
        versions = versions_of(packages)
        try:
            import seedflow

            versions["seedflow"] = seedflow.__version__
            if versions["seedflow"] != version:
                return {"versions": versions}
            from seedflow.cluster.survey import look_around

            return {"versions": versions, **look_around(marker)}
        except Exception as error:
            return {"versions": versions, "trouble": f"{type(error).__name__}: {error}"}

    async def seedflow_survey() -> dict[str, Any]:
        import asyncio

        return await asyncio.to_thread(look)

    return seedflow_survey


def _versions() -> Callable[[tuple[str, ...]], dict[str, str | None]]:
    """A function that is pickled by value, since it is nested."""

    def versions_of(packages: tuple[str, ...]) -> dict[str, str | None]:
        import importlib.metadata
        import sys

        found: dict[str, str | None] = {"python": f"{sys.version_info[0]}.{sys.version_info[1]}"}
        for name in packages:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                found[name] = None
        return found

    return versions_of


def _holding(own: str) -> Callable[..., Any]:
    def seedflow_resources(dask_worker: Any) -> tuple[dict[str, float], dict[str, tuple[str, ...]]]:
        state = dask_worker.state
        held = {
            name: total - state.available_resources[name] for name, total in state.total_resources.items()
        }
        holders: dict[str, tuple[str, ...]] = {}
        for key, task in state.tasks.items():
            # A cancelled task holds its resources until it has returned.
            at_work = {task.state, task.previous} & {"executing", "long-running"}
            if not at_work or not task.resource_restrictions:
                continue
            for name, amount in task.resource_restrictions.items():
                if str(key).startswith(own):
                    held[name] -= amount
                else:
                    holders[name] = (*holders.get(name, ()), str(key))
        return {name: amount for name, amount in held.items() if amount > 1e-9}, holders

    return seedflow_resources


def _all(answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answers, if there is one of each worker. Raises PlacementError."""
    silent = [address for address, answer in answers.items() if isinstance(answer, TimeoutError)]
    if silent:
        raise PlacementError(
            f"no answer within {REPLY_SECONDS:g} s from worker {', '.join(silent)}: it may be frozen, or its "
            "connection cut; end it, or wait until Dask has given it up"
        )
    for address, answer in answers.items():
        if isinstance(answer, Exception):
            raise PlacementError(f"worker {address} cannot be asked what it has: {answer!r}") from answer
    return answers


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])

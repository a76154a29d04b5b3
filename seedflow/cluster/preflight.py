"""What can be known to be wrong on a cluster before a role is started there.

`Preflight` asks and tries (`survey`, `reach`); what follows from the answers is decided by pure functions
(`versions`, `check_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from distributed import Client

from seedflow.cluster.placement import Placement, WorkerInfo, free_places
from seedflow.cluster.reach import check_reach
from seedflow.cluster.survey import Survey, look_for_versions, pythons, survey, with_held_resources
from seedflow.cluster.versions import PACKAGES, check_versions
from seedflow.config import Config
from seedflow.errors import PlacementError
from seedflow.learner.footprint import Footprint
from seedflow.replay.memory import gib
from seedflow.specs import EnvSpec


class Preflight:
    """The checks of one run.

    Parameters
    ----------
    client
        A connection of seedflow's own.
    config, spec
        Of the run.
    tell
        Takes sentences about what is odd and no error.
    """

    def __init__(self, client: Client, config: Config, spec: EnvSpec, tell: Callable[[str], None]) -> None:
        self._client, self._config, self._tell = client, config, tell
        self._footprint = Footprint.of(config, spec)

    def without_held(self, workers: Sequence[WorkerInfo], run: str) -> tuple[WorkerInfo, ...]:
        """The workers with what tasks of others hold of their resources."""
        return with_held_resources(self._client, workers, run)

    def check(self, placement: Placement, workers: Sequence[WorkerInfo], marker: Path) -> None:
        """Check the workers that a run would use from the beginning or later.

        Parameters
        ----------
        placement
            Where the run is about to begin.
        workers
            All workers.
        marker
            A file in the run's directory.

        Raises
        ------
        PlacementError
            Says what is wrong, where, and what to do about it.
        """
        learner = placement.learner
        others = free_places(workers, learner, placement.shared, self._config, {})
        candidates = list(dict.fromkeys([learner.worker, *(place.worker for place in others)]))
        own = look_for_versions(PACKAGES)
        spoken = pythons(self._client, candidates)
        check_versions(
            own, {address: {"python": python} for address, python in spoken.items()}, learner.worker
        )
        found = survey(self._client, candidates, PACKAGES, str(marker))
        check_import(found)
        odd = check_versions(own, {address: each.versions for address, each in found.items()}, learner.worker)
        if odd is not None:
            self._tell(odd)
        info = next(worker for worker in workers if worker.address == learner.worker)
        check_run_dir(info, found[learner.worker], marker)
        check_memory(info, found[learner.worker], self._footprint)
        self.check_paths(placement, {place.host: place.worker for place in reversed(others)})

    def check_paths(self, placement: Placement, hosts: dict[str, str]) -> None:
        """Check the way from the actors to the learner; `hosts` maps each host to a worker there."""
        rpc, learner = self._config.rpc, placement.learner
        elsewhere = sorted(place.host for place in placement.actors if place.host != learner.host)
        if rpc.path == "slab":
            if elsewhere:
                raise PlacementError(
                    "rpc.path = 'slab' uses shared memory only, but actors would be on "
                    f"{', '.join(elsewhere)} and the learner on {learner.host}; use rpc.path=auto, or start "
                    "workers for the actors there"
                )
            return
        others = [worker for host, worker in hosts.items() if host != learner.host]
        check_reach(self._client, learner.worker, rpc.interface, rpc.ports, others)


def check_import(found: dict[str, Survey]) -> None:
    """Whether seedflow can be imported everywhere. Raises PlacementError."""
    trouble = {address: each.trouble for address, each in found.items() if each.trouble is not None}
    if trouble:
        shown = "; ".join(f"{address}: {text}" for address, text in trouble.items())
        raise PlacementError(
            f"seedflow cannot be imported on {len(trouble)} of {len(found)} workers that the run could use "
            f"({shown}); install the driver's seedflow there, or declare ACTOR on the workers that have it"
        )


def check_run_dir(learner: WorkerInfo, found: Survey, marker: Path) -> None:
    """Whether the learner and the driver see one run directory. Raises PlacementError."""
    if not found.sees_run_dir:
        raise PlacementError(
            f"run_dir = {marker.parent} is not the same writable directory on this host and on the "
            f"learner's, {learner.host} (worker {learner.address}): checkpoints and metrics are written "
            "there; choose --run-dir on a file system that both share, or start the driver on that host as "
            "the same user"
        )


def check_memory(learner: WorkerInfo, found: Survey, needs: Footprint) -> None:
    """Whether what the learner takes for certain is there. Raises PlacementError with the numbers."""
    parts = {"the slab": needs.slab, "the replay": needs.replay}
    if not found.gpu:
        parts["unrolls and batches"] = needs.experience
    needed = sum(parts.values())
    shown = ", ".join(f"{gib(size)} for {name}" for name, size in parts.items() if size)
    offers = {
        "the host has": (found.memory, ""),
        "the worker's memory limit is": (
            learner.memory_limit,
            "start the learner's worker with a larger --memory-limit (0: none), ",
        ),
    }
    for what, (there, remedy) in offers.items():
        if there and needed > there:
            raise PlacementError(
                f"the learner on {learner.host} (worker {learner.address}) needs at least {gib(needed)} "
                f"({shown}), but {what} {gib(there)}; {remedy}choose a larger host, or lower "
                "replay.capacity, replay.memory_gib, train.batch, rollout.queue or actor.envs_per_group"
            )

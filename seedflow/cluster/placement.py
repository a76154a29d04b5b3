"""Where the learner and the actors go: pure functions of the workers and the settings.

The learner goes to a worker that declares the resource ``LEARNER``, else to one that declares ``GPU``
(as workers of dask-cuda can), else to the one with most memory. Actors go to the other workers: where any
worker declares ``ACTOR``, to those, as many as each declares; otherwise up to one per thread. A cluster of
one worker hosts everything. `learner.resources` and `actor.resources` name other resources, or parts of one.

Resources are declared when a worker is started: ``dask worker ... --resources "ACTOR=4"``. What tasks of
others hold of them is not there for a run.

Examples
--------
>>> from seedflow.config import Config
>>> big = WorkerInfo("tcp://10.0.0.1:4001", "10.0.0.1", nthreads=8, memory_limit=64 << 30)
>>> small = WorkerInfo("tcp://10.0.0.2:4001", "10.0.0.2", nthreads=2, memory_limit=8 << 30)
>>> placement = plan([small, big], Config.model_validate({"actor": {"count": 2}}))
>>> placement.learner.host, [place.host for place in placement.actors]
('10.0.0.1', ['10.0.0.2', '10.0.0.2'])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seedflow.cluster.resources import Needs, flag, show, whole
from seedflow.config import Config
from seedflow.errors import PlacementError


@dataclass(frozen=True)
class WorkerInfo:
    """What placement needs to know about a Dask worker.

    Attributes
    ----------
    address
        As Dask writes it, ``tcp://host:port``.
    memory_limit
        Bytes; 0 means without limit.
    resources
        What the worker declared at its start.
    running
        False for a worker that is paused or about to leave; nothing new goes there.
    held
        What tasks of others hold of its resources, as far as it was asked.
    holders
        The keys of these tasks, by resource.
    """

    address: str
    host: str
    nthreads: int = 1
    memory_limit: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    running: bool = True
    held: Mapping[str, float] = field(default_factory=dict)
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def declares(self, needs: Mapping[str, float]) -> bool:
        """Whether it has as much of each resource, held by others or not."""
        return all(self.resources.get(name, 0) >= amount for name, amount in needs.items())

    def room(self, needs: Mapping[str, float]) -> int:
        """How many tasks with such needs its resources allow beside those of others."""
        free = {name: self.resources.get(name, 0) - self.held.get(name, 0) for name in needs}
        return min(int(free[name] / amount + 1e-9) for name, amount in needs.items())


@dataclass(frozen=True)
class Place:
    """A place for one role: a worker, and the resources that its task holds there."""

    worker: str
    host: str
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Placement:
    """Where a run starts.

    Attributes
    ----------
    actors
        Training actors first, then the evaluation actor if there is one; those that have a place by now.
    shared
        Whether actors run on the learner's worker, because it is the only one or declares ``ACTOR``.
    """

    learner: Place
    actors: tuple[Place, ...]
    shared: bool


def workers_of(info: Mapping[str, Any]) -> tuple[WorkerInfo, ...]:
    """The workers in what a Dask scheduler says about itself (``Client.scheduler_info``)."""
    return tuple(
        WorkerInfo(
            address=address,
            host=str(worker["host"]),
            nthreads=int(worker["nthreads"]),
            memory_limit=int(worker["memory_limit"] or 0),
            resources=dict(worker["resources"] or {}),
            running=worker["status"] == "running",
        )
        for address, worker in info["workers"].items()
    )


def actor_roles(config: Config) -> int:
    """Actor processes of a run: the training actors and, if the run evaluates, one more."""
    return config.actor.count + (1 if config.eval.every else 0)


def plan(workers: Iterable[WorkerInfo], config: Config) -> Placement:
    """Place all roles of a run.

    Raises
    ------
    PlacementError
        If there is no worker or too few places; the message counts them and says what to change.
    """
    running = sorted((worker for worker in workers if worker.running), key=lambda worker: worker.address)
    if not running:
        raise PlacementError(
            "the Dask cluster has no running worker; start some with `dask worker SCHEDULER_ADDRESS`"
        )
    needs = Needs.of(config, running)
    best = max(_learner_workers(running, needs), key=lambda worker: _learner_rank(worker, needs))
    learner = Place(best.address, best.host, dict(needs.learner))
    shared = len(running) == 1 or (bool(needs.learner) and bool(needs.actor) and best.declares(needs.actor))
    places = free_places(running, learner, shared, config, {})
    count = actor_roles(config)
    if len(places) < min(count, config.cluster.min_actors or count):
        raise PlacementError(_too_few(running, learner, shared, config, needs, len(places)))
    return Placement(learner, tuple(places[:count]), shared)


def free_places(
    workers: Iterable[WorkerInfo],
    learner: Place,
    shared: bool,
    config: Config,
    taken: Mapping[str, int],
) -> list[Place]:
    """Places that actors can still take, best first.

    Actors spread: every worker gets one before any gets a second. Among equals the learner's own host
    comes first, since observations travel through shared memory there.

    Parameters
    ----------
    taken
        Actors that each worker, by address, hosts already.
    """
    running = [worker for worker in workers if worker.running]
    needs = Needs.of(config, running)
    ranked: list[tuple[int, bool, str, Place]] = []
    for worker in running:
        place = Place(worker.address, worker.host, dict(needs.actor))
        most = capacity(worker, needs, learner, shared, config)
        elsewhere = worker.host != learner.host
        ranked += [
            (nth, elsewhere, worker.address, place) for nth in range(taken.get(worker.address, 0), most)
        ]
    return [place for *_, place in sorted(ranked, key=lambda item: item[:3])]


def capacity(worker: WorkerInfo, needs: Needs, learner: Place, shared: bool, config: Config) -> int:
    """Actors that a worker hosts at most."""
    if worker.address == learner.worker and not shared:
        return 0
    limit = config.cluster.actors_per_worker
    if needs.actor:
        room = max(0, worker.room(needs.actor))
        return min(room, limit) if limit else room
    if worker.address == learner.worker:
        return actor_roles(config)
    return min(worker.nthreads, limit) if limit else worker.nthreads


def _learner_workers(running: Sequence[WorkerInfo], needs: Needs) -> list[WorkerInfo]:
    """Those on which a learner can be."""
    if not needs.learner:
        return list(running)
    declaring = [worker for worker in running if worker.declares(needs.learner)]
    free = [worker for worker in declaring if worker.room(needs.learner)]
    if free:
        return free
    if not declaring:
        raise PlacementError(
            f"learner.resources = {show(needs.learner)}, but no worker of the Dask cluster declares as much; "
            f"start one with `dask worker SCHEDULER_ADDRESS --resources {flag(whole(needs.learner))}`, or "
            "change learner.resources"
        )
    addresses = ", ".join(worker.address for worker in declaring)
    raise PlacementError(
        f"the learner needs {show(needs.learner)}, and other tasks hold too much of it on every worker that "
        f"declares it ({addresses}): {_holders(declaring, needs.learner)}; wait for them, share by "
        "learner.resources, or start another worker with `dask worker SCHEDULER_ADDRESS --resources "
        f"{flag(whole(needs.learner))}`"
    )


def _holders(workers: Iterable[WorkerInfo], needs: Mapping[str, float]) -> str:
    keys = {key for worker in workers for name in needs for key in worker.holders.get(name, ())}
    return ", ".join(sorted(keys))


def _learner_rank(worker: WorkerInfo, needs: Needs) -> tuple[bool, float, int]:
    """Larger is better: of equals the one with fewest threads, which leaves most places for actors."""
    memory = worker.memory_limit or float("inf")
    for_actors = bool(needs.actor) and worker.declares(needs.actor)
    return not for_actors, memory, -worker.nthreads


def _too_few(
    workers: Sequence[WorkerInfo], learner: Place, shared: bool, config: Config, needs: Needs, places: int
) -> str:
    limit = config.cluster.actors_per_worker
    others = [worker for worker in workers if shared or worker.address != learner.worker]
    wanted = f"actor.count = {config.actor.count}"
    if actor_roles(config) > config.actor.count:
        wanted += " and one for evaluation (eval.every > 0)"
    if needs.actor:
        total = {name: sum(worker.resources.get(name, 0) for worker in others) for name in needs.actor}
        offer = f"its workers declare {flag(total)} in all"
        held = {name: sum(worker.held.get(name, 0) for worker in others) for name in needs.actor}
        if any(held.values()):
            offer += f", of which other tasks hold {flag(held)} ({_holders(others, needs.actor)})"
        if needs.actor_given:
            offer += f", and actor.resources = {show(needs.actor)}"
        remedy = f'start more workers, or with a larger --resources "{next(iter(needs.actor))}=..."'
    else:
        threads = sum(worker.nthreads for worker in others)
        offer = f"workers besides the learner's: {len(others)}, with {threads} threads in all"
        remedy = "start more workers, or workers with more --nthreads"
    if limit:
        offer += f" and cluster.actors_per_worker = {limit}"
        remedy += ", raise cluster.actors_per_worker"
    needed = f"needs {actor_roles(config)} places"
    if config.cluster.min_actors is not None and config.cluster.min_actors < actor_roles(config):
        needed = f"needs {config.cluster.min_actors} places to begin with (cluster.min_actors)"
    return (
        f"{wanted} {needed}, but the Dask cluster has {places}: {offer} "
        f"(the learner takes {learner.worker}); {remedy}, or set actor.count={max(places, 1)}"
    )

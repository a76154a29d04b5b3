"""Where a lost learner goes: a pure function of the workers that are left.

It needs what it held before: a learner that had a GPU waits for one. Among the workers that offer it, one
without actors is best. If there is none yet, a worker that is just being restarted by its nanny may become
one, so that `crowded` places are taken only after a moment.

Examples
--------
>>> left = [WorkerInfo("tcp://10.0.0.2:1", "10.0.0.2"), WorkerInfo("tcp://10.0.0.3:1", "10.0.0.3")]
>>> before = Place("tcp://10.0.0.1:1", "10.0.0.1")
>>> again = place_again(left, before, {"tcp://10.0.0.2:1"})
>>> again.place.host, again.crowded
('10.0.0.3', False)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from seedflow.cluster.placement import Place, WorkerInfo
from seedflow.cluster.resources import ACTOR, flag
from seedflow.errors import PlacementError


@dataclass(frozen=True)
class Again:
    """A place for a lost learner.

    Attributes
    ----------
    crowded
        Whether actors of the run are on that worker, which go on there.
    shared
        Whether more actors may come to that worker: it is the only one, or declares ``ACTOR`` as well.
    """

    place: Place
    crowded: bool
    shared: bool


def place_again(workers: Iterable[WorkerInfo], before: Place, occupied: Collection[str]) -> Again:
    """The best place for a learner that was at `before`.

    Parameters
    ----------
    occupied
        Addresses of the workers on which actors of the run are.

    Raises
    ------
    PlacementError
        If no running worker offers what the learner held.
    """
    running = [worker for worker in workers if worker.running]
    fit = [worker for worker in running if worker.declares(before.resources)]
    if not fit:
        offers = f" that declares {flag(before.resources)}, as the learner's did" if before.resources else ""
        raise PlacementError(f"the learner was lost and there is no running worker{offers}; start one")

    def rank(worker: WorkerInfo) -> tuple[bool, bool, float, int, str]:
        memory = worker.memory_limit or float("inf")
        for_actors = worker.resources.get(ACTOR, 0) >= 1
        return worker.address not in occupied, not for_actors, memory, -worker.nthreads, worker.address

    best = max(fit, key=rank)
    shared = len(running) == 1 or (bool(before.resources) and best.resources.get(ACTOR, 0) >= 1)
    return Again(Place(best.address, best.host, before.resources), best.address in occupied, shared)

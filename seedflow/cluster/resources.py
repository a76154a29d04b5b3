"""Dask resources that the tasks of the roles hold.

They are numbers that a worker declares (``dask worker --resources "GPU=1,ACTOR=4"``) and that Dask counts: it
runs no task while what the task asks for is held by others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from seedflow.config import Config

LEARNER, GPU, ACTOR = "LEARNER", "GPU", "ACTOR"


class _Declaring(Protocol):
    @property
    def resources(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Needs:
    """What one task of each kind holds; empty for a kind that holds nothing.

    Attributes
    ----------
    learner, actor
        Amounts by name of the resource.
    actor_given
        Whether the actors' is a setting.
    """

    learner: Mapping[str, float]
    actor: Mapping[str, float]
    actor_given: bool = False

    @classmethod
    def of(cls, config: Config, workers: Iterable[_Declaring]) -> Needs:
        """From the settings, else by the convention, given what the workers declare."""
        workers = list(workers)

        def declared(name: str) -> bool:
            return any(worker.resources.get(name, 0) >= 1 for worker in workers)

        learner: Mapping[str, float] | None = config.learner.resources
        if learner is None:
            learner = next(({name: 1} for name in (LEARNER, GPU) if declared(name)), {})
        actor: Mapping[str, float] | None = config.actor.resources
        if actor is None:
            actor = {ACTOR: 1} if declared(ACTOR) else {}
        return cls(learner, actor, config.actor.resources is not None)


def flag(amounts: Mapping[str, float]) -> str:
    """As ``dask worker --resources`` takes them."""
    return ",".join(f"{name}={amount:g}" for name, amount in amounts.items())


def whole(amounts: Mapping[str, float]) -> dict[str, float]:
    """What a worker has to declare: a part is one of a whole."""
    return {name: math.ceil(amount) for name, amount in amounts.items()}


def show(amounts: Mapping[str, float]) -> str:
    """As a setting is written."""
    return "{" + ", ".join(f"{name}: {amount:g}" for name, amount in amounts.items()) + "}"

"""Talking to the supervisors on the workers, beside the notes that they send.

A worker that does not answer, cut off or stopped, is left out: it is dropped by its scheduler soon, and its
roles are started elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Client

from seedflow.cluster.asking import run_on
from seedflow.cluster.launch import Launch
from seedflow.cluster.placement import Place
from seedflow.cluster.registry import adopt_roles, tell_endpoint
from seedflow.cluster.slot import Found

ANSWER_SECONDS = 5.0
"""How long a worker may take to answer."""

logger = logging.getLogger("seedflow.cluster")


@dataclass(frozen=True)
class Adoption:
    """What is known of a run whose driver has died.

    Attributes
    ----------
    run
        Its id.
    generations
        The latest start of each role, by the role as text.
    """

    run: str
    generations: Mapping[str, int]


def announce(
    client: Client, workers: Collection[str], run: str, generation: int, endpoint: Mapping[str, Any]
) -> None:
    """Tell the actors of a run on some workers where its learner is."""
    _ask(client, workers, tell_endpoint, run, generation, dict(endpoint))


def find_roles(client: Client, workers: Collection[str], run: str) -> tuple[list[Found], list[Launch]]:
    """The roles of a run that live on some workers, and how they were launched.

    From now on their supervisors talk to this client.
    """
    answers = _ask(client, workers, adopt_roles, run, client.id)
    launches = [Launch.from_json(role["launch"]) for roles in answers for role in roles]
    found = [
        Found(
            launch.role,
            launch.generation,
            role["attempt"],
            Place(launch.worker, _host(role, launch), launch.resources),
            role["started"],
            role["learner_at"],
            role["running"],
        )
        for launch, role in zip(launches, (role for roles in answers for role in roles), strict=True)
    ]
    return found, launches


def _host(role: Mapping[str, Any], launch: Launch) -> str:
    return str(role["started"]["host"]) if role["started"] else launch.worker


def _ask(
    client: Client, workers: Collection[str], function: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """What a function returns on each worker, without those that do not answer."""
    found = []
    for worker, answer in run_on(client, workers, function, *arguments, seconds=ANSWER_SECONDS).items():
        if isinstance(answer, BaseException):
            logger.warning("worker %s does not answer: %r", worker, answer)
        else:
            found.append(answer)
    return found

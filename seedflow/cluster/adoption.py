"""Talking to the supervisors on the workers, beside the notes that they send.

A worker that does not answer, cut off or stopped, is left out: it is dropped by its scheduler soon, and its
roles are started elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed import Client

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


def _ask(client: Client, workers: Iterable[str], function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function on each worker at once; what they return, without those that do not answer."""

    async def ask(worker: str) -> Any:
        asked = client._run(function, *arguments, workers=[worker], on_error="raise")
        answers = await asyncio.wait_for(asked, ANSWER_SECONDS)
        return answers[worker]

    async def ask_all() -> list[Any]:
        return await asyncio.gather(*(ask(worker) for worker in workers), return_exceptions=True)

    try:
        answers = client.sync(ask_all, callback_timeout=4 * ANSWER_SECONDS)
    except TimeoutError:
        logger.warning("the scheduler has passed no question on to %s", ", ".join(workers))
        return []
    for worker, answer in zip(workers, answers, strict=True):
        if isinstance(answer, BaseException):
            logger.info("worker %s does not answer: %r", worker, answer)
    return [answer for answer in answers if not isinstance(answer, BaseException)]

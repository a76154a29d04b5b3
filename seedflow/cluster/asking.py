"""Asking the workers of a cluster, each by itself: one that is frozen keeps no other from being heard."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from distributed import Client

MOST_AT_ONCE = 32
"""Workers that are asked at the same time."""


def run_on(
    client: Client,
    workers: Collection[str],
    function: Callable[..., Any],
    *arguments: Any,
    seconds: float,
) -> dict[str, Any]:
    """Run a function on workers, beside their tasks.

    Parameters
    ----------
    workers
        Addresses.
    function, arguments
        What to run, as `Client.run` takes it.
    seconds
        How long each may take to answer.

    Returns
    -------
    dict
        What it returned on each worker, or the exception that came instead: a `TimeoutError` where no answer
        came, be it that the scheduler had no time to pass the question on.
    """

    def run(worker: str) -> Awaitable[Any]:
        answer: Awaitable[Any] = client._run(function, *arguments, workers=[worker], on_error="raise")
        return answer

    return ask(client, workers, run, seconds)


def ask(
    client: Client, workers: Collection[str], question: Callable[[str], Awaitable[Any]], seconds: float
) -> dict[str, Any]:
    """As `run_on`, for a question that gives a mapping from the worker's address to its answer."""
    if not workers:
        return {}

    async def ask_all() -> list[Any]:
        few = asyncio.Semaphore(MOST_AT_ONCE)

        async def one(worker: str) -> Any:
            async with few:
                return (await asyncio.wait_for(question(worker), seconds))[worker]

        return await asyncio.gather(*map(one, workers), return_exceptions=True)

    turns = math.ceil(len(workers) / MOST_AT_ONCE)
    try:
        answers = client.sync(ask_all, callback_timeout=(turns + 1) * seconds)
    except TimeoutError as error:
        return dict.fromkeys(workers, error)
    return dict(zip(workers, answers, strict=True))

"""The Dask tasks of a run's roles, held by its driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from distributed import Client, Future, fire_and_forget
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from seedflow.cluster.launch import Launch, RoleId, RoleResult, task_key
from seedflow.cluster.placement import Place
from seedflow.cluster.supervisor import as_task
from seedflow.roles.messages import failure as failure_message

logger = logging.getLogger("seedflow.cluster")

REPLY_SECONDS = 20.0
"""How long the scheduler may take to answer."""


class RoleTasks:
    """Submits and cancels the tasks of a run, and tells of their ends.

    Parameters
    ----------
    client
        A connection to the cluster.
    run
        Id of the run.
    outlive
        Whether tasks go on when the connection ends without `let_go`. Dask itself is then a holder of them,
        until they end.
    ended
        Called, in a thread of Dask's, when a task that was not cancelled here is over.
    """

    def __init__(
        self, client: Client, run: str, outlive: bool, ended: Callable[[RoleId, int, RoleResult], None]
    ) -> None:
        self._client, self._run, self._outlive, self._ended = client, run, outlive, ended
        self._futures: dict[tuple[RoleId, int], Future[RoleResult]] = {}

    def submit(self, launch: Launch, place: Place) -> None:
        """Have a role started at a place, and nowhere else."""
        future = self._client.submit(
            as_task(launch),
            key=launch.key,
            pure=False,
            retries=0,
            workers=[place.worker],
            allow_other_workers=False,
            resources=dict(place.resources) or None,
            priority=10,
        )
        if self._outlive:
            fire_and_forget(future)
        self._hold(launch, future)

    def adopt(self, launch: Launch) -> None:
        """Hold a task that another driver has submitted."""
        future: Future[RoleResult] = Future(launch.key, self._client)
        self._hold(launch, future)

    def forget(self, role: RoleId, generation: int) -> None:
        """Let go of a task that is over."""
        self._futures.pop((role, generation), None)

    def cancel(self, role: RoleId, generation: int) -> None:
        """Cancel a task; its supervisor then ends the role."""
        future = self._futures.pop((role, generation), None)
        if future is not None:
            self._client.cancel([future], force=self._outlive)
        elif self._outlive:  # one that an earlier driver has left, which nobody may know any more
            key = task_key(self._run, role, generation)
            self._client._send_to_scheduler(
                {"op": "cancel-keys", "keys": [key], "force": True, "reason": "lost", "msg": None}
            )

    def let_go(self) -> None:
        """Leave nothing of the run on the cluster."""
        if self._futures:
            self._client.cancel(list(self._futures.values()), force=self._outlive)
        self._futures.clear()

    def _hold(self, launch: Launch, future: Future[RoleResult]) -> None:
        role, generation = launch.role, launch.generation
        self._futures[role, generation] = future
        future.add_done_callback(lambda done: self._over(role, generation, done))

    def _over(self, role: RoleId, generation: int, future: Future[RoleResult]) -> None:
        """In a thread of Dask's: a task is over. Its supervisor has told so before, if it could."""
        result = _result_of(future)
        if (role, generation) in self._futures:
            self._ended(role, generation, result)
        # Else it was cancelled by ourselves, maybe just now: its supervisor tells when the role has ended.


def forget_events(topic: str) -> Callable[..., None]:
    """For the scheduler, which need not have seedflow: drop what a connection that is about to end has left.

    A connection's messages stay there for an hour, and its subscriptions, of which each has some, for good.

    Parameters
    ----------
    topic
        The connection's id, by which also the topic of its messages is called.
    """

    def seedflow_forget(dask_scheduler: Any) -> None:
        broker = dask_scheduler._broker
        for name in list(broker._topics):
            broker.unsubscribe(name, topic)
        broker.truncate(topic)

    return seedflow_forget


def _result_of(future: Future[RoleResult]) -> RoleResult:
    """What a task that is over has left; it may be cancelled, or the client be closed, at any moment."""
    try:
        if future.status == "finished":
            return future.result(timeout=REPLY_SECONDS)
        if future.status == "error" and (error := future.exception(timeout=REPLY_SECONDS)) is not None:
            lost = isinstance(error, KilledWorker | FutureCancelledError)
            return RoleResult("lost") if lost else RoleResult("broken", failed=_explain(error))
    except FutureCancelledError:
        pass
    except Exception as error:  # whatever a client raises that is being closed
        logger.info("the result of %s did not come: %r", future.key, error)
        return RoleResult("lost")
    return RoleResult("stopped")


def _explain(error: BaseException) -> dict[str, Any]:
    """The ``failed`` message of a task that did not get as far as its supervisor."""
    message = failure_message(error, retryable=not isinstance(error, ImportError))
    if isinstance(error, ImportError):
        message["message"] = f"{error}; install the same seedflow on every worker of the cluster"
    return message

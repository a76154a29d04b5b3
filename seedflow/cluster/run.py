"""A running experiment, seen from its driver."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from distributed import Client

from seedflow.cluster.adoption import Adoption, announce, find_roles
from seedflow.cluster.launch import Kind, Note, RoleId, RoleResult
from seedflow.cluster.launches import Launches
from seedflow.cluster.logs import MARKER, collect
from seedflow.cluster.placement import WorkerInfo, workers_of
from seedflow.cluster.preflight import Preflight
from seedflow.cluster.report import Failure
from seedflow.cluster.roster import STOP_MARGIN, Announce, Cancel, Roster, Submit
from seedflow.cluster.status import RunStatus
from seedflow.cluster.tasks import REPLY_SECONDS, RoleTasks, forget_events
from seedflow.config import Config
from seedflow.errors import PlacementError, RunFailed, SeedflowError
from seedflow.interrupts import STOPPING, sigterm_as_exit, uninterrupted
from seedflow.specs import EnvSpec

logger = logging.getLogger("seedflow.cluster")

WORKERS_SECONDS = 10.0
"""Pause between looks at the workers, apart from what the scheduler tells."""
REQUEST_SECONDS = 1.0
"""Pause between looks whether somebody wants the run to end."""


@dataclass(frozen=True)
class _Left:
    """A worker has left the cluster in order."""

    address: str


_Event = Note | _Left | tuple[RoleId, int, RoleResult] | Literal["workers", "stop"]


class Run:
    """One learner and its actors on a Dask cluster.

    A thread of the driver follows the run, so that it goes on while the program does something else.
    Leaving the ``with`` block, or `stop`, ends every process of the run.

    Parameters
    ----------
    client
        A connection of seedflow's own (`open_cluster`); the run does not close it.
    config, spec
        Settings and environment spec.
    run_dir
        The run's directory; logs of the roles go to ``logs/<role>-<index>-g<generation>.log`` below it.
    env_fn
        The user's function that makes an environment, pickled.
    ship
        Modules of the user's (`seedflow.envs.shipped.pack`).
    resume
        Whether the learner restores the last checkpoint of `run_dir`.
    outlives_driver
        Whether the roles go on when this process ends without having stopped them; by default the scheduler
        cancels them then.
    adoption
        A run whose driver has died and whose roles live: go on with it, instead of a new one.
    stop_wanted
        Asked every second or so: whether somebody wants the run to end.
    on_metrics
        Called, in the thread of the run, with the learner's metrics as they come.
    on_status
        Called there whenever something has happened.
    on_note
        Called there with sentences for people: the learner's, and what became of an actor; also in the
        thread that a signal interrupts. Default: the log.
    preflight
        Looks at the workers before the learner is started on one of them; None: nothing is checked.
    learner_module, actor_module
        What the roles run, as ``python -m``.

    Examples
    --------
    ::

        with open_cluster(config) as client, Run(client, config, spec, run_dir) as run:
            run.wait()
    """

    def __init__(
        self,
        client: Client,
        config: Config,
        spec: EnvSpec,
        run_dir: Path,
        *,
        env_fn: bytes | None = None,
        ship: bytes | None = None,
        resume: bool = False,
        restore_replay: str | None = None,
        outlives_driver: bool = False,
        adoption: Adoption | None = None,
        stop_wanted: Callable[[], bool] = lambda: False,
        on_metrics: Callable[[dict[str, float]], None] | None = None,
        on_status: Callable[[RunStatus], None] = lambda status: None,
        on_note: Callable[[str], None] = logger.warning,
        preflight: Preflight | None = None,
        learner_module: str = "seedflow.learner",
        actor_module: str = "seedflow.actor",
    ) -> None:
        self.id = secrets.token_hex(4) if adoption is None else adoption.run
        self.dir = Path(run_dir).resolve()
        self._client = client
        self._config = config
        start = {
            "config": config.model_dump(mode="json"),
            "spec": spec.to_json(),
            "token": secrets.token_hex(32),
            "run_dir": str(self.dir),
            "env_fn": b64encode(env_fn).decode() if env_fn is not None else None,
            "ship": b64encode(ship).decode() if ship is not None else None,
            "resume": resume,
            "restore_replay": restore_replay,
            "run": self.id,
        }
        modules: dict[Kind, str] = {"learner": learner_module, "actor": actor_module, "eval": actor_module}
        outlives = outlives_driver or adoption is not None
        self._launches = Launches(config, self.id, self.dir, client.id, modules, start, keep_logs=outlives)
        self._adoption, self._stop_wanted = adoption, stop_wanted
        self.stopped_on_request = False
        self._on_metrics = on_metrics
        self._tell, self._on_status = on_note, on_status
        self._preflight = preflight
        self._marker = self.dir / f"{MARKER}{self.id}"
        self._metrics: Mapping[str, float] = {}
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._tasks = RoleTasks(client, self.id, outlives_driver, self._on_task)
        self._roster = Roster(config, time.monotonic())
        self._changed = threading.Condition()
        self._status = RunStatus(self.id, "placing", self._roster.roles(), 0)
        self._error: SeedflowError | None = None
        self._thread: threading.Thread | None = None
        self._look_at = 0.0
        self._sigterm = sigterm_as_exit()

    def __repr__(self) -> str:
        return f"<Run {self.id} {self._status.phase} in {self.dir}>"

    def __enter__(self) -> Run:
        self._sigterm.__enter__()
        try:
            return self.start()
        except BaseException:
            self._sigterm.__exit__(None, None, None)
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            if isinstance(exc[1], KeyboardInterrupt | SystemExit):
                self._tell(STOPPING)
            self.stop()
        finally:
            self._sigterm.__exit__(None, None, None)

    def start(self) -> Run:
        """Place the roles; returns when the learner is up and the actors are on their way.

        Raises
        ------
        PlacementError
            If the cluster has no place for the roles.
        RunFailed
            If the learner fails before it is up, or is not up in time.
        """
        try:
            with uninterrupted():
                self._begin()
            self._wait_until(lambda status: status.phase not in ("placing", "starting"), None)
            if self._status.phase == "stopping":
                self._wait_until(lambda status: status.phase == "ended", None)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                self._tell(STOPPING)
            self.stop()
            raise
        if self._error is not None:
            raise self._error
        return self

    def status(self) -> RunStatus:
        """How the run is doing."""
        return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the run.

        Parameters
        ----------
        timeout
            Seconds; None waits as long as the run goes on.

        Returns
        -------
        bool
            Whether the run has ended, by itself or by `stop`.

        Raises
        ------
        RunFailed
            If a role failed in a way that a restart cannot cure.
        """
        ended = self._wait_until(lambda status: status.phase == "ended", timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """End every process of the run and wait until they have ended; may be called again.

        Takes no longer than the roles' grace and a few seconds: processes that do not end are killed.
        """
        if self._thread is None:
            return
        self._events.put("stop")
        grace = max(self._config.cluster.stop_seconds, self._config.actor.stop_seconds)
        patience = grace + 2 * STOP_MARGIN + REPLY_SECONDS
        with uninterrupted():
            if not self._wait_until(lambda status: status.phase == "ended", patience):
                logger.error("run %s has not stopped in time; its connection's end will stop it", self.id)
            self._thread.join(timeout=1.0)

    def _begin(self) -> None:
        if self._thread is None:
            self._roster = Roster(self._config, time.monotonic())
            self._thread = threading.Thread(target=self._follow, name=f"seedflow-run-{self.id}", daemon=True)
            self._thread.start()

    def _wait_until(self, condition: Callable[[RunStatus], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not condition(self._status):
                left = 1.0 if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(min(left, 1.0))
        return True

    def _follow(self) -> None:
        """Thread: from placing the roles to their end."""
        try:
            self._client.subscribe_topic(self._client.id, self._on_topic)
            self._client.subscribe_topic("all", self._on_cluster_event)
            self._marker.touch(mode=0o600)
            if self._adoption is not None:
                self._adopt(self._adoption)
            self._events.put("workers")
            while self._roster.phase != "ended":
                self._step()
            self._error = self._roster.error()
            if self._error is not None and self._roster.failure is not None:
                self._error.__cause__ = self._roster.failure.cause
            self._let_go()
        except Exception as cause:
            text = f"the driver lost hold of run {self.id}: {type(cause).__name__}: {cause}"
            self._error = self._error or RunFailed(text)
            self._error.__cause__ = self._error.__cause__ or cause
        finally:
            self._marker.unlink(missing_ok=True)
            self._publish("ended")

    def _step(self) -> None:
        now = time.monotonic()
        due = self._roster.next_time(now)
        due = self._look_at if due is None else min(self._look_at, due)
        try:
            event: _Event | None = self._events.get(timeout=min(REQUEST_SECONDS, max(0.0, due - now)))
        except queue.Empty:
            event = None
        if event is not None:
            self._handle(event)
        if time.monotonic() >= self._look_at:  # however much is heard meanwhile
            self._handle("workers")
        if not self.stopped_on_request and self._stop_wanted():
            self.stopped_on_request = True
            self._tell(STOPPING)
            self._roster.stop(time.monotonic())
        for command in self._roster.advance(time.monotonic()):
            match command:
                case Submit():
                    self._submit(command)
                case Cancel():
                    self._tasks.cancel(command.role, command.generation)
                case Announce(workers):
                    assert self._roster.endpoint is not None
                    generation = self._roster.learner_restarts
                    announce(self._client, workers, self.id, generation, self._roster.endpoint)
        for notice in self._roster.notices:
            self._tell(notice)
        self._roster.notices.clear()
        if self._roster.phase != "ended":
            self._publish(self._roster.phase)

    def _handle(self, event: _Event) -> None:
        now = time.monotonic()
        if event == "workers":
            self._look_at = now + WORKERS_SECONDS
            workers = self._look_at_workers()
            if workers is not None:
                self._roster.see_workers(workers, time.monotonic())
        elif event == "stop":
            self._roster.stop(now)
        elif isinstance(event, _Left):
            self._roster.worker_left(event.address, now)
        elif isinstance(event, Note) and event.kind == "log":
            collect(self.dir, f"{event.role}-g{event.generation}.log", str(event.content["text"]))
        elif isinstance(event, Note):
            self._roster.heard(event, now)
            if event.role.kind == "learner" and event.content.get("kind") == "metrics":
                self._report(event.content["values"])
        else:
            assert isinstance(event, tuple)
            role, generation, result = event
            self._tasks.forget(role, generation)
            self._roster.ended(role, generation, result, now)

    def _report(self, values: Mapping[str, float]) -> None:
        self._metrics = dict(values)
        if self._on_metrics is None:
            return
        try:
            self._on_metrics(dict(values))
        except Exception as error:
            headline = f"the metrics callback of run {self.id} failed: {type(error).__name__}: {error}"
            self._roster.stop(time.monotonic(), Failure(headline, cause=error))

    def _look_at_workers(self) -> tuple[WorkerInfo, ...] | None:
        """The workers that there are; None where the scheduler has no time for an answer, now."""
        scheduler = self._client.scheduler
        assert scheduler is not None
        try:
            identity = self._client.sync(scheduler.identity, n_workers=-1, callback_timeout=REPLY_SECONDS)
        except TimeoutError:
            logger.warning("the scheduler has not answered run %s for %g s", self.id, REPLY_SECONDS)
            return None
        workers = workers_of(identity)
        if self._preflight is not None and self._roster.waiting:
            workers = self._preflight.without_held(workers, self.id)
        return workers

    def _approved(self, command: Submit) -> bool:
        """Whether the run may begin where it was placed; ends it if not."""
        if self._preflight is None or command.role.kind != "learner" or command.generation > 0:
            return True
        try:
            self._preflight.check(*self._roster.plan(), self._marker)
        except PlacementError as error:
            self._roster.refuse(command, Failure(str(error), placement=True), time.monotonic())
            return False
        return True

    def _submit(self, command: Submit) -> None:
        if self._approved(command):
            launch = self._launches.of(command, self._roster.endpoint, self._roster.attempt)
            self._tasks.submit(launch, command.place)

    def _adopt(self, adoption: Adoption) -> None:
        """Go on with the roles that live: what they were started with, their states, their tasks.

        Raises
        ------
        RunFailed
            If none does.
        """
        workers = self._look_at_workers()
        if workers is None:
            raise RunFailed(f"the scheduler has not said within {REPLY_SECONDS:g} s which workers there are")
        found, launches = find_roles(self._client, [worker.address for worker in workers], self.id)
        if not found:
            raise RunFailed("none of its processes is left on the Dask cluster")
        self._launches.go_on_as(launches[0])
        for launch in launches:
            self._tasks.adopt(launch)
        now = time.monotonic()
        self._roster.see_workers(workers, now)
        self._roster.adopt(found, adoption.generations, now)

    def _let_go(self) -> None:
        """Leave nothing of the run on the cluster."""
        if self._client.status != "running":
            return
        self._tasks.let_go()
        self._client.unsubscribe_topic("all")
        self._client.unsubscribe_topic(self._client.id)
        with suppress(Exception):  # a courtesy: the scheduler forgets them an hour later
            self._client.sync(
                self._client._run_on_scheduler, forget_events(self._client.id), callback_timeout=REPLY_SECONDS
            )

    def _publish(self, phase: Any) -> None:
        error = str(self._error) if self._error is not None else None
        roster = self._roster
        counts = roster.restarts, self._metrics, error, roster.learner_restarts
        status = RunStatus(self.id, phase, roster.roles(), *counts)
        self._on_status(status)
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def _on_topic(self, event: tuple[float, Any]) -> None:
        """In the connection's thread: an event of our topic."""
        note = Note.from_event(event[1], self.id)
        if note is not None:
            self._events.put(note)

    def _on_cluster_event(self, event: tuple[float, Any]) -> None:
        """In the connection's thread: something happened to the cluster."""
        message = event[1]
        if not isinstance(message, dict) or message.get("action") not in ("add-worker", "remove-worker"):
            return
        if message["action"] == "remove-worker" and message.get("expected"):
            self._events.put(_Left(str(message["worker"])))
        self._events.put("workers")

    def _on_task(self, role: RoleId, generation: int, result: RoleResult) -> None:
        """In a thread of Dask's: a task is over."""
        self._events.put((role, generation, result))

"""An actor's life: find the learner, register, step, and begin again when the learner was lost."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from seedflow.actor.activity import Activity
from seedflow.actor.patience import Patience
from seedflow.actor.start import ActorStart, shape_of
from seedflow.actor.stepping import ActorLoop, GroupFault, StepCounts
from seedflow.actor.watchdog import Watchdog
from seedflow.envs.base import GroupEnv
from seedflow.envs.make import make_group
from seedflow.envs.seeding import env_seed
from seedflow.envs.shipped import shipped
from seedflow.errors import (
    ConnectionLost,
    EnvironmentFault,
    RegistrationRefused,
    SeedflowError,
    TransportError,
)
from seedflow.roles import EXIT_DONE, EXIT_FAILED, EXIT_HOPELESS, RoleChannel, failure
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Connection, Endpoint, Exit
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout
from seedflow.rpc.tls import Tls

log = logging.getLogger(__name__)

WAKE_SECONDS = 1.0
"""An idle actor looks this often whether it is to stop."""
RECONNECT_BITS = 20
"""Low bits of a seed incarnation that count reconnections; the actor's generation stands above."""
GENERATION_BITS = 20
"""Bits of a seed incarnation for the generation; the run's attempt stands above."""


class ActorSession:
    """Runs an actor until it is told to end, ends by itself, or has looked for its learner for too long.

    Parameters
    ----------
    channel
        The open channel to the supervisor.
    start
        Its start message.
    """

    def __init__(self, channel: RoleChannel, start: ActorStart) -> None:
        self._channel = channel
        self._start = start
        self._config = start.config
        self._token = str(channel.start["token"])
        self._endpoint = Endpoint.from_json(channel.start["endpoint"])
        self._tls = Tls.from_json(channel.start.get("tls"))
        groups, envs = shape_of(start.config, start.role)
        self._registration = Registration(
            start.role, start.index, start.generation, start.spec.fingerprint, groups, envs
        )
        actor = start.config.actor
        self._layout = BlockLayout(start.spec, actor.groups, actor.envs_per_group)
        self._counts = StepCounts()
        self._activity = Activity(channel.board)
        self._before = start.before
        self._connections = 0
        self._patience = Patience(start.config.actor.reconnect_seconds)
        self._report_at = 0.0

    @property
    def name(self) -> str:
        return f"{self._registration.name} (generation {self._registration.generation})"

    def run(self) -> int:
        """Connect, step, reconnect; returns the exit code."""
        with shipped(self._start.ship):
            return self._run()

    def _run(self) -> int:
        while True:
            self._state("starting" if self._connections == 0 else "reconnecting")
            try:
                connection = self._connect()
            except Exit as order:
                return self._ended(order)
            except RegistrationRefused as error:
                return self._failed(error, retryable=error.retryable)
            except TransportError as error:
                return self._failed(error, retryable=True)
            if connection is None:
                return self._stopped()
            try:
                with connection:
                    return self._serve(connection)
            except ConnectionLost as error:
                log.warning("%s lost its learner: %s", self.name, error)
            except Exit as order:
                if order.code != "dropped":
                    return self._ended(order)
                log.warning("%s was dropped by its learner: %s", self.name, order.reason)

    def _connect(self) -> Connection | None:
        """Try until the learner grants a lease; None on a stop request.

        Raises
        ------
        RegistrationRefused
            At once where the learner will not change its mind, else when the time is over.
        ConnectionLost
            When the time is over.
        Exit
            If the run has ended.
        """
        self._patience.search()
        problem: TransportError = ConnectionLost("the learner was lost again before it sent an action")
        while True:
            pause, left = self._patience.pause(), self._patience.left()
            if pause and pause >= left:
                raise self._gave_up(problem) from problem
            if pause:
                log.info("%s tries again in %.2f s: %s", self.name, pause, problem)
            if self._channel.stop_requested.wait(pause):
                return None
            try:
                connection = self._attempt(left - pause)
            except RegistrationRefused as error:
                # After a broken connection the learner may take a while to see that the old one is gone.
                if not (error.retryable or self._connections):
                    raise
                problem = error
            except TransportError as error:
                problem = error
            else:
                self._patience.found()
                return connection

    def _gave_up(self, problem: TransportError) -> TransportError:
        seconds = self._config.actor.reconnect_seconds
        text = (
            f"{self.name} found no learner within actor.reconnect_seconds = {seconds:g} "
            f"({self._endpoint}): {problem}"
        )
        if isinstance(problem, RegistrationRefused):
            return RegistrationRefused(text, retryable=True)
        return ConnectionLost(text)

    def _attempt(self, seconds: float) -> Connection | None:
        """One connection attempt; None if a stop was requested meanwhile.

        The attempt runs in a thread of its own: it may block for ``rpc.connect_seconds``, while a stop
        request, or word that the learner is elsewhere, is to be obeyed at once.
        """
        self._moved()
        rpc = self._config.rpc
        rpc = rpc.model_copy(update={"connect_seconds": min(rpc.connect_seconds, seconds)})
        attempt = _Attempt(
            lambda: connect(
                self._endpoint,
                self._token,
                self._registration,
                self._layout,
                rpc,
                self._config.actor.heartbeat_seconds,
                self._tls,
            )
        )
        while not attempt.done.wait(0.1):
            if self._channel.stop_requested.is_set():
                return None
            if self._moved():
                attempt.abandon()
                raise ConnectionLost("the learner is elsewhere now")
        return attempt.result()

    def _moved(self) -> bool:
        """Take note of a new endpoint, if the supervisor has told one; whether it has."""
        told = self._channel.endpoint
        if told is None or (endpoint := Endpoint.from_json(told)) == self._endpoint:
            return False
        self._endpoint = endpoint
        self._patience.progress()  # there is a learner again: no pause before the next attempt
        return True

    def _serve(self, connection: Connection) -> int:
        """Make the environments and step them until something ends that; returns the exit code."""
        if self._before is not None:
            connection.report_fault(self._before.text, self._before.kind)
            self._before = None
        seconds = self._config.actor.env_timeout_seconds
        with Watchdog(self._activity, seconds, lambda fault: self._hangs(connection, fault)):
            return self._step(connection)

    def _step(self, connection: Connection) -> int:
        try:
            groups = self._make_groups(connection.env_ids)
        except BaseException as error:
            # What could not be imported or made here once will not be by the same code a second time.
            hopeless = isinstance(error, ImportError | SeedflowError) and not self._connections
            return self._fault(connection, error, "cannot make its environments", not hopeless)
        log.info(
            "%s has lease %d, environments %d to %d, over %s%s",
            self.name,
            connection.lease_id,
            connection.env_ids.start,
            connection.env_ids.stop - 1,
            type(connection).__name__,
            ", encrypted" if connection.encrypted else "",
        )
        self._connections += 1
        with ActorLoop(connection, groups, self._counts, self._activity) as loop:
            self._state("running")
            before = self._counts.agent_steps
            while not self._channel.stop_requested.is_set():
                try:
                    loop.step(WAKE_SECONDS)
                except GroupFault as fault:
                    cause = fault.__cause__ or fault
                    return self._fault(connection, cause, f"failed in the {fault}", retryable=True)
                if self._counts.agent_steps > before:
                    self._patience.progress()
                if self._moved():
                    raise ConnectionLost("another start of the learner has taken its place")
                self._report()
        return self._stopped()

    def _make_groups(self, env_ids: range) -> list[GroupEnv]:
        env_fn = self._load_env_fn()
        starts = (self._start.attempt << GENERATION_BITS) + self._start.generation
        incarnation = (starts << RECONNECT_BITS) + self._connections
        role = "actor" if self._start.role == "train" else "eval"
        envs = self._registration.envs
        groups: list[GroupEnv] = []
        try:
            for g in range(self._registration.groups):
                ids = env_ids[g * envs : (g + 1) * envs]
                seeds = [env_seed(self._config.seed, role, env_id, incarnation) for env_id in ids]
                self._activity.begin("__init__", g, ids)
                group = make_group(
                    self._config.env, envs, seeds, env_fn=env_fn, position=self._activity.position
                )
                self._activity.end()
                groups.append(group)
                if group.spec != self._start.spec:
                    raise EnvironmentFault(
                        f"{self._config.env.id} looks different on this host: {group.spec} "
                        f"(expected {self._start.spec}); install the same versions everywhere"
                    )
        except BaseException:
            self._activity.end()
            for group in groups:
                group.close()
            raise
        return groups

    def _load_env_fn(self) -> Callable[[], Any] | None:
        if self._start.env_fn is None:
            return None
        import cloudpickle

        try:
            env_fn: Callable[[], Any] = cloudpickle.loads(self._start.env_fn)
        except Exception as error:
            raise EnvironmentFault(
                f"env_fn cannot be unpickled on this host ({type(error).__name__}: {error}); install the "
                "modules that it uses here, or name them in env.ship"
            ) from error
        return env_fn

    def _report(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if now < self._report_at and not at_once:
            return
        self._report_at = now + self._config.metrics.every_seconds
        counts = self._counts
        values = {
            "actor/steps": counts.agent_steps,
            "actor/env_frames": counts.env_frames,
            "actor/env_seconds": counts.env_seconds,
            "actor/wait_seconds": counts.wait_seconds,
            "actor/reconnects": max(0, self._connections - 1),
        }
        self._channel.send({"kind": "metrics", "values": values})

    def _state(self, state: str, **more: str) -> None:
        self._channel.send({"kind": "state", "state": state, **more})

    def _stopped(self) -> int:
        self._state("stopping", reason="stop requested")
        self._report(at_once=True)
        self._channel.send({"kind": "done", "reason": "stopped"})
        return EXIT_DONE

    def _ended(self, order: Exit) -> int:
        log.info("%s ends, %s: %s", self.name, order.code, order.reason)
        self._state("stopping", reason=f"{order.code}: {order.reason}")
        self._report(at_once=True)
        self._channel.send({"kind": "done", "reason": order.code})
        return EXIT_DONE

    def _failed(self, error: BaseException, retryable: bool) -> int:
        log.error("%s failed", self.name, exc_info=error)
        self._channel.send(failure(error, retryable))
        return EXIT_FAILED if retryable else EXIT_HOPELESS

    def _fault(self, connection: Connection, error: BaseException, what: str, retryable: bool) -> int:
        """Tell both the learner and the supervisor that the environments failed; returns the exit code."""
        error.add_note(f"{self.name} {what}")
        connection.report_fault("".join(traceback.format_exception(error)))
        return self._failed(error, retryable)

    def _hangs(self, connection: Connection, fault: EnvironmentFault) -> None:
        """In the watchdog's thread: nothing but the end of the process ends a call that does not return."""
        fault.add_note(f"{self.name} hangs")
        connection.report_fault("".join(traceback.format_exception(fault)), "hung")
        self._channel.abandon(self._failed(fault, retryable=True))


class _Attempt:
    """A call that runs in a daemon thread, so that a process can end without it."""

    def __init__(self, call: Callable[[], Connection]) -> None:
        self.done = threading.Event()
        self._call = call
        self._value: Connection | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._abandoned = False
        threading.Thread(target=self._run, name="actor-connect", daemon=True).start()

    def _run(self) -> None:
        try:
            value = self._call()
        except BaseException as error:
            self._error = error
        else:
            with self._lock:
                self._value = value
                if self._abandoned:
                    value.close()
        finally:
            self.done.set()

    def abandon(self) -> None:
        """Close the connection that comes of it, if one does."""
        with self._lock:
            self._abandoned = True
            if self._value is not None:
                self._value.close()

    def result(self) -> Connection | None:
        if self._error is not None:
            raise self._error
        return self._value

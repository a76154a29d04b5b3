"""The Dask task of a role: starts the role as a child process, passes on what it says, ends it.

A role in a child process has its own interpreter lock, memory and CUDA context, and can be killed; the
worker stays free to talk with its scheduler. The task leaves the worker's thread pool (`secede`), so the
worker's threads remain for others, and its resources are held until the role has ended.

Dask never interrupts a task. The supervisor looks, several times a second, whether the task was cancelled
(which also happens when the driver's connection ends, however it ends) or the worker is leaving.
"""

from __future__ import annotations

import math
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from dask.system import CPU_COUNT
from distributed import Status, Worker, get_worker, secede

from seedflow.actor.activity import Activity
from seedflow.cluster.addresses import address_to_bind
from seedflow.cluster.credentials import worker_tls
from seedflow.cluster.launch import Launch, Note, NoteKind, RoleResult
from seedflow.cluster.logs import RoleLog
from seedflow.cluster.registry import LiveRole, entered
from seedflow.config import Config
from seedflow.errors import PlacementError, TransportError
from seedflow.learner.pulse import Stillness
from seedflow.roles import RoleProcess
from seedflow.roles.messages import failure
from seedflow.rpc.listener import remove_socket

POLL_SECONDS = 0.25
HANG_MARGIN = 5.0
"""Seconds that an actor has to notice by itself that an environment hangs."""
CRASH_MARK, CRASH_LINES = "Fatal Python error", 200
"""How faulthandler begins what it writes into a log, and how long that is at most."""
CRASH_SECONDS = 5.0
"""How long an actor that hangs may take to write down where."""
LEAVING_SECONDS = 15.0
"""Grace on a leaving worker, which waits 30 s for its threads."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def as_task(launch: Launch) -> Callable[[], RoleResult]:
    """The function to submit.

    It is pickled by value and imports seedflow only when it runs: the scheduler unpickles tasks and need
    not have seedflow. Its argument is part of it, so that the token is in no log line or page of Dask.
    """
    text = launch.to_json()

    def seedflow_role() -> Any:
        from seedflow.cluster.launch import Launch
        from seedflow.cluster.supervisor import supervise

        return supervise(Launch.from_json(text))

    return seedflow_role


def supervise(launch: Launch) -> RoleResult:
    """Run a role to its end, inside a Dask task."""
    worker = get_worker()
    key = str(worker.get_current_task())
    live = LiveRole(launch, uuid.uuid4().hex, launch.topic)

    def tell(kind: NoteKind, content: Mapping[str, Any]) -> None:
        note = Note(launch.run, launch.role, launch.generation, live.attempt, kind, content)
        worker.log_event(live.topic, note.to_event())

    secede()
    with entered(live):
        try:
            result = _run(live, worker, key, tell)
        except (OSError, PlacementError, TransportError) as error:
            retryable = not isinstance(error, PlacementError)
            result = RoleResult("broken", failed=failure(error, retryable), host=socket.gethostname())
        tell("ended", asdict(result))
    return result


def role_environment(threads: int | None, gpu: bool = True) -> dict[str, str]:
    """Environment variables of a role.

    The number of threads is always explicit: Dask sets it to 1 in its workers, which would throttle a
    learner on CPUs, while actors, of which there are many on a host, must not use a thread per core each.
    Without `gpu` the role sees no GPU, of which an environment would otherwise take memory from the learner.
    A learner sees what its worker does; of dask-cuda's it takes the first, which is the worker's own.
    """
    count = str(threads or CPU_COUNT)
    return dict.fromkeys(THREAD_VARIABLES, count) | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})


def _run(live: LiveRole, worker: Worker, key: str, tell: Callable[..., None]) -> RoleResult:
    launch, host = live.launch, socket.gethostname()
    if worker.address != launch.worker:
        return RoleResult("lost", host=host)
    if (outcome := _must_end(worker, key)) is not None:
        return RoleResult(outcome, host=host)
    environment = role_environment(launch.threads, launch.gpu)
    log = RoleLog(Path(launch.log_path), launch.run, Path(worker.local_directory))
    log.write(_first_line(launch, worker, environment))
    start = dict(launch.start)
    tls = worker_tls(worker)
    start["tls"] = None if tls is None else tls.to_json()
    if launch.role.kind == "learner":
        start["host"] = address_to_bind(start.get("host"), worker.ip)
    done: str | None = None
    failed: Mapping[str, Any] | None = None
    socket_path: str | None = None
    outcome = None
    hung = ""
    process = RoleProcess(launch.module, start, log.path, environment)
    hangs = _hangs(launch, process)
    try:
        live.started = {"host": host, "pid": process.pid, "log_path": str(log.shown)}
        tell("started", live.started)
        while True:
            # The code is read first: what a role said before it ended is then all there.
            code = process.returncode()
            for message in process.poll_messages():
                if message["kind"] == "done":
                    done = str(message.get("reason", ""))
                elif message["kind"] == "failed":
                    failed = message
                elif message["kind"] == "endpoint":
                    live.learner_at = message
                    socket_path = message["endpoint"].get("socket")
                elif message["kind"] == "state":
                    live.state = str(message.get("state"))
                tell("message", message)
            if (news := log.news(time.monotonic(), last=code is not None)) is not None:
                tell("log", {"text": news})
            if code is not None:
                break
            if (endpoint := live.take_endpoint()) is not None:
                process.send({"kind": "endpoint", "endpoint": dict(endpoint)})
            if (outcome := _must_end(worker, key)) is not None:
                process.stop(min(launch.grace, LEAVING_SECONDS) if outcome == "left" else launch.grace)
            elif hung := hangs():
                process.crash(CRASH_SECONDS)
            else:
                time.sleep(POLL_SECONDS)
    finally:
        process.kill()
        if socket_path is not None:
            remove_socket(Path(socket_path))
    result = RoleResult(
        outcome=outcome or "ended",
        exit_code=code,
        done=done,
        failed=failed,
        log_tail=process.log_tail(),
        host=host,
        log_path=str(log.shown),
        doing="" if launch.role.kind == "learner" else Activity(process.board()).describe(),
        hung=hung,
        crash=_crash(process),
    )
    if not launch.keep_log:
        log.remove()
    return result


def _crash(process: RoleProcess) -> str:
    _, mark, stacks = process.log_tail(CRASH_LINES).rpartition(CRASH_MARK)
    return mark + stacks


def _hangs(launch: Launch, process: RoleProcess) -> Callable[[], str]:
    """Asked several times a second: what of a role goes on no more, in words; empty if all does."""
    config = Config.model_validate(launch.start["config"])
    if launch.role.kind == "learner":
        return Stillness(process, config.learner.hang_seconds, config.inference.lease_seconds).look
    seconds = config.actor.env_timeout_seconds
    limit = math.inf if seconds is None else seconds + HANG_MARGIN  # it has not noticed itself

    def call_of_an_environment() -> str:
        activity = Activity(process.board())
        return f"{activity.describe()} did not return" if activity.overdue(limit) else ""

    return call_of_an_environment


def _must_end(worker: Worker, key: str) -> Literal["stopped", "left"] | None:
    """Why the role has to end now, if it has to."""
    task = worker.state.tasks.get(key)
    if task is None or task.state in ("cancelled", "resumed"):
        return "stopped"
    if worker.status not in (Status.running, Status.paused):
        return "left"
    return None


def _first_line(launch: Launch, worker: Worker, environment: Mapping[str, str]) -> str:
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    return (
        f"# {launch.role} generation {launch.generation} of run {launch.run} on {socket.gethostname()}, "
        f"worker {worker.address}: {settings}"
    )

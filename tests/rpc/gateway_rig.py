"""An `EchoLearner` that keeps what it was sent, and a gateway in front of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from seedflow.rpc.connection import Connection
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.leases import Registration
from seedflow.rpc.tls import Tls
from seedflow.rpc.transport import GroupRang, LeaseClosed
from seedflow.specs import ArraySpec, EnvSpec
from tests.rpc.echo_learner import TOKEN, EchoLearner, Rows, registration

HOST = "127.0.0.1"
TIMEOUT = 60.0


def pixels(*shape: int) -> EnvSpec:
    return EnvSpec((ArraySpec("observation", shape, np.dtype(np.uint8)),), num_actions=6)


def until(condition: Callable[[], object], what: str) -> None:
    """Poll until `condition` holds."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT} s for {what}"
        time.sleep(0.005)


class RecordingLearner(EchoLearner):
    """Keeps the rows that it answers: ``received[lease id, group]`` has one copy for each step."""

    def __init__(self, spec: EnvSpec, groups: int = 2, envs: int = 3, **changes: Any) -> None:
        super().__init__(spec, groups, envs, **{"actors": 32, **changes})
        self.received: dict[tuple[int, int], list[Rows]] = {}

    def answer(self, rang: GroupRang) -> None:
        start = rang.group * self.layout.envs
        index = (rang.lease.block, slice(start, start + rang.lease.envs))
        rows = {name: array[index].copy() for name, array in self.slab.fields.items() if name != "action"}
        self.received.setdefault((rang.lease.id, rang.group), []).append(rows)
        super().answer(rang)

    def closed(self, lease_id: int) -> bool:
        return any(isinstance(e, LeaseClosed) and e.lease.id == lease_id for e in list(self.events))

    def registered(self, index: int, generation: int = 0, **changes: Any) -> Registration:
        layout = self.layout
        fields = {"fingerprint": layout.spec.fingerprint, "groups": layout.groups, "envs": layout.envs}
        return registration(index, generation, **{**fields, **changes})


class Rig:
    """A learner, its gateway, and actors' connections that are closed at the end."""

    def __init__(self, learner: RecordingLearner, log_path: Path, tls: Tls | None = None) -> None:
        self.learner = learner
        self.log_path = log_path
        layout = learner.layout
        self.gateway = GatewayProcess(
            TOKEN,
            learner.socket,
            HOST,
            None,
            layout.spec,
            groups=layout.groups,
            envs=layout.envs,
            lease_seconds=learner.server.table.lease_seconds,
            tls=tls,
            log_path=log_path,
        )
        self._open: list[Connection] = []
        self._indices = iter(range(1000))

    def index(self) -> int:
        """An actor index that no other test of this rig uses."""
        return next(self._indices)

    def connect(
        self,
        index: int | None = None,
        generation: int = 0,
        *,
        token: str = TOKEN,
        heartbeat_seconds: float = 5.0,
        **changes: Any,
    ) -> GrpcConnection:
        connection = GrpcConnection.open(
            self.gateway.address,
            token,
            self.learner.registered(self.index() if index is None else index, generation, **changes),
            self.learner.layout,
            TIMEOUT,
            heartbeat_seconds,
        )
        self._open.append(connection)
        return connection

    def kill_gateway(self) -> None:
        """End the gateway as a crash does."""
        assert self.gateway.pid is not None
        os.kill(self.gateway.pid, signal.SIGKILL)

    def hang_up(self) -> None:
        """Close every connection."""
        while self._open:
            self._open.pop().close()


@contextlib.contextmanager
def running(learner: RecordingLearner, directory: Path, tls: Tls | None = None) -> Iterator[Rig]:
    """Run a learner and its gateway; end all of it at last."""
    with learner:
        rig = Rig(learner, directory / "gateway.log", tls)
        with rig.gateway:
            rig.gateway.start(TIMEOUT)
            try:
                yield rig
            finally:
                rig.hang_up()


def fill(connection: Connection, group: int, seed: int, first: bool = False) -> Rows:
    """Write random rows into a group and return a copy of them."""
    rng = np.random.default_rng(seed)
    rows = connection.rows(group)
    for array in rows.values():
        bits = (
            rng.integers(0, 2, array.shape) if array.dtype == np.bool_ else rng.integers(0, 100, array.shape)
        )
        array[...] = bits.astype(array.dtype)
    rows["first"][:] = first
    rows["action"][:] = -1
    return {name: array.copy() for name, array in rows.items() if name != "action"}


def step(connection: Connection, group: int, seed: int, first: bool = False) -> Rows:
    """One step of a group: what was sent, with the actions that came back."""
    sent = fill(connection, group, seed, first)
    connection.ring(group)
    assert connection.wait(TIMEOUT) == group
    return {**sent, "action": connection.rows(group)["action"].copy()}

"""Steps that take longer than a lease lasts, of which the actor's own heartbeat may know nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedflow.rpc.connection import Endpoint
from seedflow.rpc.transport import LeaseClosed
from tests.rpc.echo_learner import SPEC
from tests.rpc.gateway_rig import RecordingLearner, Rig, running

HOLDS_THE_LOCK = """
import ctypes, json, sys
from seedflow.config import RpcConfig
from seedflow.errors import ConnectionLost
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.slab import BlockLayout
from tests.rpc.echo_learner import SPEC, TOKEN, registration

endpoint, seconds = Endpoint.from_json(json.loads(sys.argv[1])), int(sys.argv[2])
rpc = RpcConfig(path="auto")
with connect(endpoint, TOKEN, registration(0), BlockLayout(SPEC, 2, 4), rpc, 0.2) as actor:
    def ring(group):
        actor.rows(group)["first"][:] = True
        actor.ring(group)
    def step():
        ring(0)
        assert actor.wait(60.0) == 0
    step()
    print("registered", flush=True)
    try:
        ring(1)  # whose actions come while nobody can take them
        # Unlike CDLL, it keeps the interpreter lock, as careless C code does.
        ctypes.PyDLL(None).sleep(seconds)
        assert actor.wait(60.0) == 1
        step()
        print("kept", flush=True)
    except ConnectionLost:
        print("lost", flush=True)
"""


@pytest.fixture(params=["slab", "grpc"])
def endpoint(request: pytest.FixtureRequest, rig: Rig) -> Endpoint:
    """Where the learner is found by an actor of its host, or of another."""
    if request.param == "slab":
        return Endpoint(socket=rig.learner.socket)
    return Endpoint(gateway=rig.gateway.address)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(RecordingLearner(SPEC, 2, 4, lease_seconds=6.0), tmp_path) as rig:
        yield rig


@contextlib.contextmanager
def program(endpoint: Endpoint, seconds: int) -> Iterator[subprocess.Popen[str]]:
    """The program above; killed at the end."""
    command = [sys.executable, "-c", HOLDS_THE_LOCK, json.dumps(endpoint.to_json()), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as actor:
        try:
            yield actor
        finally:
            actor.kill()


def test_a_step_that_is_longer_than_the_lease_and_holds_the_interpreter_lock_loses_nothing(
    rig: Rig, endpoint: Endpoint
) -> None:
    with program(endpoint, seconds=15) as actor:
        assert actor.stdout is not None
        assert [actor.stdout.readline() for _ in range(2)] == ["registered\n", "kept\n"]
        assert rig.learner.server.metrics()["lease/dropped_silent"] == 0
        assert rig.learner.server.metrics()["lease/registrations"] == 1


def test_a_process_that_is_stopped_loses_its_lease_all_the_same(rig: Rig, endpoint: Endpoint) -> None:
    with program(endpoint, seconds=1) as actor:
        assert actor.stdout is not None
        assert actor.stdout.readline() == "registered\n"
        actor.send_signal(signal.SIGSTOP)
        assert rig.learner.event(LeaseClosed).ending == "silent"
        actor.send_signal(signal.SIGCONT)
        assert actor.stdout.readline() == "lost\n"

"""Steps that take longer than a lease lasts, of which the actor's own heartbeat may know nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from seedflow.rpc.transport import LeaseClosed
from tests.rpc.echo_learner import EchoLearner

HOLDS_THE_LOCK = """
import ctypes, sys
from seedflow.config import RpcConfig
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.slab import BlockLayout
from tests.rpc.echo_learner import SPEC, TOKEN, registration

path, seconds = sys.argv[1], int(sys.argv[2])
rpc = RpcConfig(path="slab")
with connect(Endpoint(path), TOKEN, registration(0), BlockLayout(SPEC, 2, 4), rpc, 0.2) as actor:
    def step():
        actor.rows(0)["first"][:] = True
        actor.ring(0)
        assert actor.wait(60.0) == 0
    step()
    print("registered", flush=True)
    ctypes.PyDLL(None).sleep(seconds)  # unlike CDLL, it keeps the interpreter lock, as careless C code does
    step()
    print("kept", flush=True)
"""


def grandchild(*arguments: str) -> subprocess.Popen[str]:
    """A program whose parent is not this process, as an actor's is not its learner."""
    command = ["sh", "-c", '"$@" & echo $!; wait $!', "sh", sys.executable, "-c", HOLDS_THE_LOCK, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_step_that_is_longer_than_the_lease_and_holds_the_interpreter_lock_loses_nothing() -> None:
    with EchoLearner(lease_seconds=2.0) as learner, grandchild(str(learner.server.path), "7") as actor:
        assert actor.stdout is not None
        pid, *said = (actor.stdout.readline() for _ in range(3))
        assert said == ["registered\n", "kept\n"]
        assert int(pid)
        assert learner.server.metrics()["lease/dropped_silent"] == 0
        assert learner.server.metrics()["lease/registrations"] == 1


def test_a_process_that_is_stopped_loses_its_lease_all_the_same() -> None:
    with EchoLearner(lease_seconds=2.0) as learner, grandchild(str(learner.server.path), "1") as actor:
        assert actor.stdout is not None
        pid = int(actor.stdout.readline())
        assert actor.stdout.readline() == "registered\n"
        os.kill(pid, signal.SIGSTOP)
        assert learner.event(LeaseClosed).ending == "silent"
        os.kill(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGCONT)

"""What one side does wrongly, or its sudden end, reaches the other side and harms nobody else."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedflow.errors import ConnectionLost
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.grpc_options import MAX_MESSAGE_BYTES, SILENCE_SECONDS, grpc
from seedflow.rpc.messages import PROTOCOL_VERSION
from seedflow.rpc.seedflow_pb2 import ActorMessage, LearnerMessage, Register, Step
from tests.rpc.echo_learner import TOKEN
from tests.rpc.gateway_rig import TIMEOUT, RecordingLearner, Rig, pixels, running, step, until


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(RecordingLearner(pixels(4)), tmp_path_factory.mktemp("gateway")) as rig:
        yield rig


@pytest.fixture
def shared(lasting: Rig) -> Iterator[Rig]:
    """One that no test may end."""
    yield lasting
    lasting.hang_up()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """One whose gateway or learner a test may end."""
    with running(RecordingLearner(pixels(4), lease_seconds=30.0), tmp_path) as rig:
        yield rig


def register(rig: Rig, **changes: Any) -> ActorMessage:
    spoken = rig.learner.registered(rig.index())
    fields = {
        "version": PROTOCOL_VERSION,
        "token": TOKEN,
        "role": spoken.role,
        "index": spoken.index,
        "fingerprint": spoken.fingerprint,
        "groups": spoken.groups,
        "envs": spoken.envs,
    }
    return ActorMessage(register=Register(**{**fields, **changes}))


def request(rig: Rig, group: int = 0, payload: bytes | None = None) -> ActorMessage:
    """A step whose rows have every flag set, `first` too."""
    nbytes = rig.learner.layout.request_bytes
    return ActorMessage(step=Step(group=group, payload=b"\1" * nbytes if payload is None else payload))


def converse(rig: Rig, *messages: ActorMessage | bytes) -> tuple[list[LearnerMessage], grpc.StatusCode, str]:
    """Send messages over a stream of their own, and leave it open. Returns all that came and how it ended."""
    outgoing: queue.SimpleQueue[ActorMessage | bytes | None] = queue.SimpleQueue()
    for message in messages:
        outgoing.put(message)
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(rig.gateway.address, options) as channel:
        stream = channel.stream_stream(
            "/seedflow.rpc.Gateway/Steps",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=LearnerMessage.FromString,
        )
        call = stream(iter(outgoing.get, None), timeout=TIMEOUT)
        came = []
        try:
            came.extend(call)
        except grpc.RpcError:
            pass
        finally:
            outgoing.put(None)
        return came, call.code(), call.details()


def kinds(messages: list[LearnerMessage]) -> list[str]:
    return [message.WhichOneof("kind") for message in messages]


def malformed_messages(rig: Rig) -> dict[str, tuple[ActorMessage | bytes, str]]:
    return {
        "a group that the lease does not have": (request(rig, group=2), "names group 2: expected 0 to 1"),
        "a group beyond any": (request(rig, group=2**32 - 1), "names group 4294967295"),
        "a payload too short": (request(rig, payload=b"\1"), "has 1 bytes, expected 57"),
        "a payload too long": (request(rig, payload=b"\1" * 58), "has 58 bytes, expected 57"),
        "a second registration": (register(rig), "got register"),
        "nothing": (ActorMessage(), "got an empty message"),
        "bytes of another protocol": (b"\xff\xff\xff\xff", "not a message of seedflow.proto"),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a group that the lease does not have",
        "a group beyond any",
        "a payload too short",
        "a payload too long",
        "a second registration",
        "nothing",
        "bytes of another protocol",
    ],
)
def test_a_malformed_message_ends_its_own_stream_only(what: str, shared: Rig) -> None:
    other = shared.connect()
    step(other, 0, seed=0, first=True)
    message, complaint = malformed_messages(shared)[what]
    came, status, text = converse(shared, register(shared), message)
    assert kinds(came) == ["granted"]
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in text
    until(lambda: shared.learner.closed(came[0].granted.lease_id), "the end of the lease")
    step(other, 0, seed=1)


def test_a_message_over_the_limit_ends_its_own_stream_only(shared: Rig) -> None:
    other = shared.connect()
    came, status, text = converse(shared, register(shared), request(shared, payload=bytes(MAX_MESSAGE_BYTES)))
    assert kinds(came) == ["granted"]
    assert status == grpc.StatusCode.RESOURCE_EXHAUSTED, text
    until(lambda: shared.learner.closed(came[0].granted.lease_id), "the end of the lease")
    until(lambda: shared.gateway.counts().broken >= 1, "the gateway's count")
    step(other, 0, seed=0, first=True)


def test_a_second_step_before_the_actions_never_reaches_the_rows(rig: Rig) -> None:
    rig.learner.answering = False
    came, status, text = converse(rig, register(rig), request(rig), request(rig))
    assert kinds(came) == ["granted"]
    assert status == grpc.StatusCode.INVALID_ARGUMENT
    assert "group 0 sent a second step" in text
    until(lambda: rig.learner.closed(came[0].granted.lease_id), "the end of the lease")
    assert [ring.lease.id for ring in rig.learner.rings] == [came[0].granted.lease_id]


@pytest.mark.parametrize(
    ("changes", "status", "complaint"),
    [
        ({"token": "f" * 64}, grpc.StatusCode.UNAUTHENTICATED, "token"),
        ({"token": "ü"}, grpc.StatusCode.UNAUTHENTICATED, "token"),
        ({"token": ""}, grpc.StatusCode.UNAUTHENTICATED, "token"),
        (
            {"role": "spectator"},
            grpc.StatusCode.INVALID_ARGUMENT,
            "role = 'spectator': expected one of train, eval",
        ),
        ({"fingerprint": "f" * 70_000}, grpc.StatusCode.INVALID_ARGUMENT, "fingerprint has 70000 characters"),
    ],
    ids=["another token", "a token that is not ASCII", "no token", "unknown role", "endless fingerprint"],
)
def test_a_registration_that_cannot_be_gets_a_status(
    changes: dict[str, Any], status: grpc.StatusCode, complaint: str, shared: Rig
) -> None:
    came, got, text = converse(shared, register(shared, **changes))
    assert (came, got) == ([], status)
    assert complaint in text


def test_a_stream_begins_with_a_registration(shared: Rig) -> None:
    came, status, text = converse(shared, request(shared))
    assert (came, status) == ([], grpc.StatusCode.INVALID_ARGUMENT)
    assert "must be its registration" in text


def test_another_protocol_version_is_refused_by_name(shared: Rig) -> None:
    came, _, _ = converse(shared, register(shared, version=PROTOCOL_VERSION + 1))
    assert kinds(came) == ["refused"]
    assert not came[0].refused.retryable
    assert f"version {PROTOCOL_VERSION + 1}" in came[0].refused.reason


def test_a_first_step_without_a_reset_loses_the_lease(shared: Rig) -> None:
    connection = shared.connect()
    with pytest.raises(ConnectionLost, match="does not begin with a reset"):
        step(connection, 0, seed=0, first=False)


def test_an_actor_notices_that_the_learner_is_gone(rig: Rig) -> None:
    connection = rig.connect()
    step(connection, 0, seed=0, first=True)
    rig.learner.__exit__()
    with pytest.raises(ConnectionLost, match="learner"):
        connection.wait(TIMEOUT)
    with pytest.raises(ConnectionLost):
        connection.ring(0)
    with pytest.raises(ConnectionLost, match="cannot reach its learner"):
        rig.connect()


def test_an_actor_survives_the_gateway_and_finds_it_on_its_port(rig: Rig) -> None:
    connection = rig.connect(index=7)
    step(connection, 0, seed=0, first=True)
    port, pid = rig.gateway.port, rig.gateway.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionLost):
        connection.wait(TIMEOUT)
    connection.close()
    until(lambda: rig.learner.closed(connection.lease_id), "the end of the lease")
    until(lambda: rig.gateway.poll() is not None, "the gateway's end")
    assert rig.gateway.returncode == -signal.SIGKILL
    assert rig.gateway.restart(TIMEOUT) == port
    step(rig.connect(index=7), 0, seed=1, first=True)


def test_nobody_listening_is_noticed_at_once(shared: Rig) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match=address):
            GrpcConnection.open(
                address, "token", shared.learner.registered(0), shared.learner.layout, TIMEOUT, 5.0
            )


def test_a_gateway_that_says_nothing_is_given_up(shared: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionLost, match=f"the gateway at {address}"):
            GrpcConnection.open(
                address, "token", shared.learner.registered(0), shared.learner.layout, 0.2, 5.0
            )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_long_silence_is_no_fault_but_a_gateway_that_stops_answering_is(tmp_path: Path) -> None:
    with running(RecordingLearner(pixels(4), lease_seconds=600.0), tmp_path) as rig:
        connection = rig.connect(heartbeat_seconds=1000.0)
        step(connection, 0, seed=0, first=True)
        assert connection.wait(2 * SILENCE_SECONDS) is None  # several pings, and nothing else
        step(connection, 0, seed=1)
        pid = rig.gateway.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLost, match="the connection to the gateway"):
                connection.wait(TIMEOUT)
        finally:
            os.kill(pid, signal.SIGCONT)


ACTOR = """
import json, sys
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout
from seedflow.specs import EnvSpec

start = json.loads(sys.stdin.readline())
layout = BlockLayout(EnvSpec.from_json(start["spec"]), start["groups"], start["envs"])
registration = Registration("train", 3, 0, layout.spec.fingerprint, layout.groups, layout.envs)
connection = GrpcConnection.open(start["gateway"], start["token"], registration, layout, 60.0, 0.1)
connection.rows(0)["first"][:] = True
connection.ring(0)
connection.wait(60.0)
print(connection.lease_id, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def actor(rig: Rig) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that has done one step as actor 3, and the id of its lease."""
    layout = rig.learner.layout
    start = {
        "gateway": rig.gateway.address,
        "token": TOKEN,
        "spec": layout.spec.to_json(),
        "groups": layout.groups,
        "envs": layout.envs,
    }
    with subprocess.Popen(
        [sys.executable, "-c", ACTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(start) + "\n")
            process.stdin.flush()
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_a_killed_actor_gives_its_block_back(actor: tuple[subprocess.Popen[str], int], rig: Rig) -> None:
    process, lease_id = actor
    process.kill()
    until(lambda: rig.learner.closed(lease_id), "the end of the lease")
    until(lambda: rig.learner.server.counts().quarantined == 0, "its block to be free")


def test_a_stopped_actor_is_replaced_and_keeps_no_block(
    actor: tuple[subprocess.Popen[str], int], rig: Rig
) -> None:
    process, lease_id = actor
    process.send_signal(signal.SIGSTOP)
    replacement = rig.connect(index=3, generation=1)
    step(replacement, 0, seed=0, first=True)
    assert rig.learner.closed(lease_id)
    until(lambda: rig.learner.server.counts().quarantined == 0, "its block to be free")
    step(replacement, 0, seed=1)

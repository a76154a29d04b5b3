"""Nonsense at control socket, doorbell and gateway: no crash, no hang, no growth, no row of two writers."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedflow.rpc import messages
from seedflow.rpc.control import ControlServer
from seedflow.rpc.grpc_options import grpc
from seedflow.rpc.leases import Lease, LeaseTable
from seedflow.rpc.messages import Fault, Granted, Heartbeat, Register, Reply, Ring, encode
from seedflow.rpc.seedflow_pb2 import ActorMessage, LearnerMessage, Step
from seedflow.rpc.seedflow_pb2 import Fault as WireFault
from seedflow.rpc.seedflow_pb2 import Heartbeat as WireHeartbeat
from seedflow.rpc.seedflow_pb2 import Register as WireRegister
from seedflow.rpc.slab import Block, BlockLayout, Slab
from seedflow.rpc.transport import GroupRang
from tests.rpc.echo_learner import TOKEN, registration
from tests.rpc.gateway_rig import TIMEOUT, RecordingLearner, Rig, pixels, running, step, until
from tests.rpc.mutator import mutated

SPEC = pixels(4)
GROUPS, ENVS, ACTORS = 2, 3, 6
CORPUS = [
    encode(Ring(0)),
    encode(Ring(1)),
    encode(Reply(0)),
    encode(Heartbeat()),
    encode(Fault("Traceback (most recent call last)", "raised")),
    encode(Register(TOKEN, registration(1, fingerprint=SPEC.fingerprint, groups=GROUPS, envs=ENVS))),
    encode(Register("0" * 64, registration(2, fingerprint=SPEC.fingerprint, groups=GROUPS, envs=ENVS))),
    encode(messages.Refused("full", retryable=True)),
    encode(messages.ExitOrder("over", "finished")),
]
GROWTH = 16 * 2**20
"""Bytes by which a process may have grown after all of it: caches and fragments, not what messages leave."""


def memory(pid: int | None = None) -> int:
    return int(psutil.Process(pid).memory_info().rss)


class Writer:
    """A peer that says what it likes. With a lease it writes its number into every row of its block."""

    def __init__(self, bench: Bench, number: int, index: int | None, generation: int = 0) -> None:
        self.number = number
        self.lease: Lease | None = None
        self.block: Block | None = None
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.connect(str(bench.server.path))
        self.sock.setblocking(False)
        if index is None:
            return
        spoken = registration(index, generation, fingerprint=SPEC.fingerprint, groups=GROUPS, envs=ENVS)
        self.sock.send(encode(Register(TOKEN, spoken)))
        bench.settle()
        answer, fd = messages.receive(self.sock)
        if isinstance(answer, Granted):
            assert fd is not None
            self.lease = answer.lease
            self.block = Block.map(fd, bench.layout, self.lease.block)
            os.close(fd)
            for group in range(GROUPS):
                self.block.rows(group)["observation"][:] = number
                self.block.rows(group)["first"][:] = True

    def say(self, data: bytes) -> bool:
        """Whether the learner still listened."""
        try:
            self.sock.send(data)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            return False
        except OSError:  # longer than a datagram may be
            return True
        return True

    def close(self) -> None:
        if self.block is not None:
            self.block.close()
        self.sock.close()


class Bench:
    """A control server whose learner is the test, in one thread, and a bystander whom nothing may disturb."""

    def __init__(self) -> None:
        self.layout = BlockLayout(SPEC, GROUPS, ENVS)
        self.table = LeaseTable(ACTORS, 0, 2, GROUPS, ENVS, SPEC.fingerprint, 600.0)
        self.slab = Slab(self.layout, self.table.blocks)
        self.server = ControlServer(self.layout, self.slab, self.table, TOKEN)
        self.writers: dict[int, Writer] = {}
        self.owners: dict[int, Writer] = {}  # by lease id
        self.held: list[GroupRang] = []
        self.sent = 0
        self.bystander = Writer(self, 99, index=0)
        assert self.bystander.lease is not None
        self.owners[self.bystander.lease.id] = self.bystander

    def settle(self) -> list[GroupRang]:
        """Let the server take in all that was said."""
        rings = []
        while events := self.server.poll(0.0):
            rings += [event for event in events if isinstance(event, GroupRang)]
        self.held += rings
        return rings

    def check_rows(self, rang: GroupRang) -> None:
        """The rows of a group that rang hold what its own writer wrote, and nobody else's."""
        owner = self.owners[rang.lease.id]
        rows = slice(rang.group * ENVS, rang.group * ENVS + ENVS)
        assert (self.slab.fields["observation"][rang.lease.block, rows] == owner.number).all()

    def answer_all(self) -> None:
        for rang in self.held:
            with contextlib.suppress(ValueError):  # a group that a bad counter has dropped
                self.server.reply(rang.lease.id, rang.group)
        self.held.clear()

    def check(self) -> None:
        """The bystander is served, and no block has two owners."""
        self.answer_all()
        self.settle()
        block = self.bystander.block
        assert block is not None
        for group in range(GROUPS):
            block.count_request(group)
            assert self.bystander.say(encode(Ring(group)))
        rings = [rang for rang in self.settle() if rang.lease == self.bystander.lease]
        assert [rang.group for rang in rings] == list(range(GROUPS))
        for rang in rings:
            self.check_rows(rang)
        self.answer_all()
        assert [messages.receive(self.bystander.sock)[0] for _ in rings] == [Reply(0), Reply(1)]
        blocks = [lease.block for lease in self.table.active()]
        assert len(blocks) == len(set(blocks))
        counts = self.table.counts()
        assert counts.active + counts.quarantined + counts.free == self.table.blocks

    def open(self, rng: random.Random) -> Writer:
        """A new writer in place of an old one; nobody's lease is taken away before its connection is gone."""
        index = rng.randrange(1, ACTORS)
        if (old := self.writers.pop(index, None)) is not None:
            old.close()
            self.settle()
        number = rng.randrange(1, 90)
        writer = Writer(self, number, index if rng.random() < 0.7 else None, rng.randrange(3))
        self.writers[index] = writer
        if writer.lease is not None:
            self.owners[writer.lease.id] = writer
        return writer

    def close(self) -> None:
        """All connections end, and all blocks are free."""
        for writer in (*self.writers.values(), self.bystander):
            writer.close()
        self.settle()
        assert self.table.counts().free == self.table.blocks
        assert not self.server.poll(0.0)
        self.server.close()
        self.slab.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


SHORT_AND_LONG = pytest.mark.parametrize(
    "count", [1_500, pytest.param(40_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)


@SHORT_AND_LONG
def test_mutated_messages_at_the_control_socket(bench: Bench, count: int) -> None:
    rng = random.Random(count)
    warm, files = 0, 0
    while bench.sent < count:
        writer = bench.open(rng)
        for _ in range(rng.randrange(1, 6)):
            bench.sent += 1
            if not writer.say(mutated(rng, CORPUS)):
                break
            for rang in bench.settle():
                bench.check_rows(rang)
        if rng.random() < 0.1:
            bench.check()
        if not warm and bench.sent > count // 3:
            warm, files = memory(), descriptors()
    bench.check()
    assert memory() - warm < GROWTH
    assert abs(descriptors() - files) <= 2 * ACTORS
    values = bench.server.metrics()
    assert values["control/strays"] > 0
    assert values["lease/dropped_protocol"] > 0
    assert values["lease/refused"] > 0


@SHORT_AND_LONG
def test_doorbells_with_any_counters_flags_and_groups(bench: Bench, count: int) -> None:
    rng = random.Random(count + 1)
    warm = 0
    while bench.sent < count:
        writer = bench.open(rng)
        if writer.block is None:
            continue
        for _ in range(rng.randrange(1, 30)):
            bench.sent += 1
            group = rng.choice((0, 0, 0, 1, 1, 1, 2, 255))
            real = min(group, GROUPS - 1)
            writer.block.rows(real)["first"][:] = rng.random() < 0.95
            if rng.random() < 0.9:
                writer.block.requests[real] = (int(writer.block.requests[real]) + 1) % 2**64
            elif rng.random() < 0.5:
                writer.block.requests[real] = rng.choice((0, 1, 2**63, 2**64 - 1))
            if rng.random() < 0.02:
                writer.block.replies[real] = rng.choice((0, 7, 2**64 - 1))
            if not writer.say(bytes((messages.RING, group))):
                break
            for rang in bench.settle():
                bench.check_rows(rang)
                assert rang.group < GROUPS
            if rng.random() < 0.7:
                bench.answer_all()
            with contextlib.suppress(BlockingIOError, messages.ConnectionLost):
                messages.receive(writer.sock)
        if rng.random() < 0.1:
            bench.check()
        warm = warm or (memory() if bench.sent > count // 3 else 0)
    bench.check()
    assert memory() - warm < GROWTH


def wire_corpus(rig: Rig) -> list[bytes]:
    layout = rig.learner.layout
    fields = {"version": messages.PROTOCOL_VERSION, "role": "train", "fingerprint": layout.spec.fingerprint}
    sizes = {"groups": layout.groups, "envs": layout.envs}
    steps = [Step(group=g, payload=b"\1" * layout.request_bytes) for g in range(layout.groups)]
    return [
        ActorMessage(register=WireRegister(token=TOKEN, index=1, **fields, **sizes)).SerializeToString(),
        ActorMessage(register=WireRegister(token="0" * 64, index=1, **fields, **sizes)).SerializeToString(),
        *(ActorMessage(step=step).SerializeToString() for step in steps),
        ActorMessage(heartbeat=WireHeartbeat()).SerializeToString(),
        ActorMessage(fault=WireFault(text="Traceback", kind="raised")).SerializeToString(),
    ]


def converse(channel: grpc.Channel, said: list[bytes]) -> list[LearnerMessage]:
    """Say all of it over a stream of its own; returns what came until either side ended it."""
    outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    for data in said:
        outgoing.put(data)
    outgoing.put(None)
    stream = channel.stream_stream(
        "/seedflow.rpc.Gateway/Steps",
        request_serializer=lambda data: data,
        response_deserializer=LearnerMessage.FromString,
    )
    call = stream(iter(outgoing.get, None), timeout=TIMEOUT)
    came: list[LearnerMessage] = []
    with contextlib.suppress(grpc.RpcError):
        came.extend(call)
    assert call.code() != grpc.StatusCode.DEADLINE_EXCEEDED, "the stream hangs"
    return came


@pytest.mark.parametrize(
    "count", [400, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_mutated_messages_at_the_gateway(count: int, tmp_path: Path) -> None:
    rng = random.Random(count + 2)
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)]
    with (
        running(RecordingLearner(SPEC, GROUPS, ENVS, actors=ACTORS), tmp_path) as rig,
        grpc.insecure_channel(rig.gateway.address, options) as channel,
    ):
        pid = rig.gateway.pid
        bystander = rig.connect(index=0)
        step(bystander, 0, seed=0, first=True)
        corpus = wire_corpus(rig)
        sent, warm, granted = 0, 0, 0
        while sent < count:
            said = [corpus[0]] if rng.random() < 0.7 else []
            said += [mutated(rng, corpus) for _ in range(rng.randrange(1, 6))]
            sent += len(said)
            came = converse(channel, said)
            granted += any(message.HasField("granted") for message in came)
            if rng.random() < 0.1:
                sent_rows = step(bystander, 0, seed=sent)
                received = rig.learner.received[bystander.lease_id, 0][-1]
                np.testing.assert_array_equal(received["observation"], sent_rows["observation"])
                rig.learner.received.clear()
                rig.learner.rings.clear()
            warm = warm or (memory(pid) if sent > count // 3 else 0)
        assert granted > 0
        assert rig.gateway.pid == pid
        assert rig.gateway.poll() is None
        until(lambda: rig.learner.server.counts().active == 1, "the end of all streams but the bystander's")
        until(lambda: rig.learner.server.counts().quarantined == 0, "all blocks to be free")
        until(lambda: rig.gateway.counts().streams == 1, "the gateway to have let go of them")
        assert memory(pid) - warm < GROWTH
        assert rig.gateway.counts().malformed > 0
        assert rig.gateway.counts().refused_token > 0
        step(bystander, 1, seed=1, first=True)


conversations = st.lists(
    st.binary(max_size=200)
    | st.sampled_from(CORPUS)
    | st.builds(lambda data, cut: data[:cut], st.sampled_from(CORPUS), st.integers(0, 60))
    | st.builds(lambda kind, rest: bytes((kind,)) + rest, st.integers(0, 9), st.binary(max_size=40)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations, st.booleans())
def test_any_conversation_leaves_the_bystander_undisturbed(
    bench: Bench, said: list[bytes], registered: bool
) -> None:
    writer = Writer(bench, 7, 1 if registered else None)
    if writer.lease is not None:
        bench.owners[writer.lease.id] = writer
    for data in said:
        writer.say(data)
        bench.settle()
    writer.close()
    bench.settle()
    bench.check()
    assert bench.table.counts().active == 1

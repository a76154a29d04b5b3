"""Control server and shared-memory client, end to end over real sockets, in threads."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from seedflow.config.tree import RpcConfig
from seedflow.errors import ConnectionLost, RegistrationRefused, TransportError
from seedflow.rpc import control, messages
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Connection, Endpoint, Exit
from seedflow.rpc.messages import ExitOrder, Fault, Granted, Heartbeat, Register, Reply, Ring, encode, receive
from seedflow.rpc.slab import Block, BlockLayout
from seedflow.rpc.transport import FaultReported, LeaseClosed, LeaseOpened
from seedflow.specs import ArraySpec, EnvSpec
from tests.rpc.echo_learner import SPEC, TIMEOUT, TOKEN, EchoLearner, expected_actions, registration


@pytest.fixture
def learner() -> Iterator[EchoLearner]:
    with EchoLearner() as learner:
        yield learner


def write(actor: Connection, group: int, seed: int, first: bool = False) -> None:
    rng = np.random.default_rng(seed)
    rows = actor.rows(group)
    for name, array in rows.items():
        if name.startswith("observation"):
            array[...] = rng.integers(0, 200, array.shape)
    rows["first"][:] = first


def step(actor: Connection, group: int, seed: int, first: bool = False) -> None:
    """Send random observations and check the actions that come back."""
    write(actor, group, seed, first)
    actor.ring(group)
    assert actor.wait(TIMEOUT) == group
    rows = actor.rows(group)
    np.testing.assert_array_equal(rows["action"], expected_actions(rows, SPEC.num_actions))


class RawActor:
    """A peer that says what it likes."""

    def __init__(self, learner: EchoLearner, register: bool = True, index: int = 0) -> None:
        self.learner = learner
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(learner.socket)
        if register:
            self.sock.send(encode(Register(TOKEN, registration(index))))
            granted, fd = receive(self.sock)
            assert isinstance(granted, Granted)
            assert fd is not None
            self.lease = granted.lease
            self.block = Block.map(fd, learner.layout, self.lease.block)
            os.close(fd)

    def ring(self, group: int, first: bool = True) -> None:
        self.block.rows(group)["first"][:] = first
        self.block.count_request(group)
        self.sock.send(encode(Ring(group)))

    def expect_drop(self) -> str:
        message, _ = receive(self.sock)
        assert isinstance(message, ExitOrder)
        assert message.code == "dropped"
        return message.reason

    def __enter__(self) -> "RawActor":
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()


# What works


def test_actions_answer_the_observations_of_their_group(learner: EchoLearner) -> None:
    with learner.connect(registration(2)) as actor:
        assert actor.env_ids == range(16, 24)
        assert learner.event(LeaseOpened).lease == actor.lease
        for number in range(50):
            step(actor, number % 2, seed=number, first=number < 2)


def test_both_groups_may_be_in_flight_at_once(learner: EchoLearner) -> None:
    with learner.connect() as actor:
        for round_ in range(20):
            for group in (0, 1):
                write(actor, group, seed=round_, first=round_ == 0)
                actor.ring(group)
            assert {actor.wait(TIMEOUT), actor.wait(TIMEOUT)} == {0, 1}


def test_many_actors_are_served_at_once() -> None:
    with EchoLearner(actors=8) as learner:

        def act(index: int) -> None:
            with learner.connect(registration(index)) as actor:
                for number in range(30):
                    step(actor, number % 2, seed=number, first=number < 2)

        threads = [threading.Thread(target=act, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        learner.until(lambda: len(learner.rings) == 240)
        learner.event(LeaseClosed, 7)
        assert learner.server.counts().free == learner.slab.blocks


def test_an_evaluation_actor_may_step_fewer_environments(learner: EchoLearner) -> None:
    small = registration(role="eval", groups=1, envs=3)
    with learner.connect(small) as actor:
        assert actor.rows(0)["reward"].shape == (3,)
        assert actor.rows(0)["observation/image"].shape == (3, 5, 3)
        assert actor.env_ids == range(3)
        step(actor, 0, seed=0, first=True)


@pytest.mark.parametrize(("envs", "shape"), [(64, (4, 84, 84)), (128, (4, 128, 128))])
def test_steps_of_megabytes_travel(envs: int, shape: tuple[int, ...]) -> None:
    spec = EnvSpec((ArraySpec("observation", shape, np.dtype(np.uint8)),), num_actions=5)
    with (
        EchoLearner(spec, groups=1, envs=envs, actors=1, evaluators=0, spare=0) as learner,
        learner.connect(registration(fingerprint=spec.fingerprint, groups=1, envs=envs)) as actor,
    ):
        step_rows = actor.rows(0)
        write(actor, 0, seed=1, first=True)
        actor.ring(0)
        assert actor.wait(TIMEOUT) == 0
        np.testing.assert_array_equal(step_rows["action"], expected_actions(step_rows, 5))


def test_wait_gives_up_after_its_time(learner: EchoLearner) -> None:
    learner.answering = False
    with learner.connect() as actor:
        write(actor, 0, seed=0, first=True)
        actor.ring(0)
        assert actor.wait(0.0) is None
        assert actor.wait(0.01) is None
        learner.until(lambda: learner.rings)
        learner.call(lambda: learner.answer(learner.rings[0]))
        assert actor.wait(TIMEOUT) == 0


def test_wake_from_another_thread_makes_a_waiting_poll_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "TICK_SECONDS", 10_000.0)
    with EchoLearner() as learner:
        polling = threading.Event()

        def wake() -> None:
            assert polling.wait(TIMEOUT)
            learner.server.wake()

        waker = threading.Thread(target=wake)
        waker.start()
        learner.call(lambda: (polling.set(), learner.server.poll(9_000.0)))  # or the test runs out of time
        waker.join(TIMEOUT)


def test_closing_twice_and_waking_afterwards_do_nothing() -> None:
    learner = EchoLearner()
    path = learner.server.path
    learner.server.close()
    learner.server.close()
    learner.server.wake()
    learner.slab.close()
    assert not path.exists()
    assert not path.parent.exists()


# Who gets in


def test_a_wrong_token_is_refused_for_good_and_not_shown(learner: EchoLearner) -> None:
    with pytest.raises(RegistrationRefused, match="token does not match") as raised:
        learner.connect(token="0" * 64)
    assert not raised.value.retryable
    assert learner.server.metrics()["lease/refused_token"] == 1
    assert TOKEN not in str(raised.value)
    assert learner.server.counts().granted == 0


def test_a_wrong_fingerprint_or_layout_is_refused_by_name(learner: EchoLearner) -> None:
    with pytest.raises(RegistrationRefused, match=r"fingerprint 'other' .*groups 3 \(expected 2\)") as raised:
        learner.connect(registration(fingerprint="other", groups=3))
    assert not raised.value.retryable


def test_another_protocol_version_is_refused_by_name(learner: EchoLearner) -> None:
    with RawActor(learner, register=False) as actor:
        actor.sock.send(encode(Register(TOKEN, registration(), version=99)))
        message, _ = receive(actor.sock)
        assert isinstance(message, messages.Refused)
        assert "protocol version 99" in message.reason
        assert not message.retryable


def test_one_actor_too_many_is_told_to_try_again(learner: EchoLearner) -> None:
    with pytest.raises(RegistrationRefused, match="full") as raised:
        learner.connect(registration(3))
    assert raised.value.retryable


def test_the_same_generation_twice_is_refused_and_the_first_goes_on(learner: EchoLearner) -> None:
    with learner.connect() as actor:
        step(actor, 0, seed=0, first=True)
        with pytest.raises(RegistrationRefused, match="generation 0 of train actor 0 is already connected"):
            learner.connect()
        step(actor, 0, seed=1)


def test_a_stale_generation_is_refused_and_the_newer_one_goes_on(learner: EchoLearner) -> None:
    with learner.connect(registration(generation=3)) as newer:
        step(newer, 0, seed=0, first=True)
        with pytest.raises(RegistrationRefused, match="which is newer than generation 2") as raised:
            learner.connect(registration(generation=2))
        assert not raised.value.retryable
        assert learner.server.metrics()["lease/refused_stale"] == 1
        step(newer, 0, seed=1)


def test_a_higher_generation_takes_over_and_the_older_is_told_to_exit(learner: EchoLearner) -> None:
    with learner.connect() as older, learner.connect(registration(generation=1)) as newer:
        step(newer, 0, seed=0, first=True)
        with pytest.raises(Exit, match="superseded by generation 1 of train actor 0") as raised:
            older.wait(TIMEOUT)
        assert raised.value.code == "superseded"
        with pytest.raises(Exit):
            older.ring(0)
        assert learner.event(LeaseClosed).lease == older.lease
        assert older.lease.block != newer.lease.block
        assert learner.server.counts().restarts == 1
        step(newer, 1, seed=0, first=True)


def test_an_actor_that_stands_still_can_be_replaced_at_once(learner: EchoLearner) -> None:
    with RawActor(learner) as stopped:  # its connection stays open and it never reads
        stopped.ring(0)
        with learner.connect(registration(generation=1)) as replacement:
            step(replacement, 0, seed=0, first=True)
            assert learner.server.counts().quarantined == 1


def test_an_actor_that_closed_can_come_back_at_once(learner: EchoLearner) -> None:
    for _ in range(10):
        with learner.connect() as actor:
            step(actor, 0, seed=0, first=True)


def test_a_new_lease_finds_fresh_counters_in_a_used_block() -> None:
    with EchoLearner(actors=1, evaluators=0, spare=0) as learner:
        for number in range(3):
            with learner.connect() as actor:
                assert actor.block.requests.tolist() == actor.block.replies.tolist() == [0, 0]
                step(actor, 0, seed=number, first=True)
            learner.event(LeaseClosed, number)


# Who is thrown out


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\xff", "unknown message kind 255"),
        (bytes((messages.RING, 0, 0)), "a doorbell of 3 bytes"),
        (b"x" * (messages.MAX_MESSAGE + 10), "a message of"),
        (b"\x07" + json.dumps({"text": 3}).encode(), "text is int"),
        (encode(Reply(0)), "Reply is not for the learner"),
        (encode(Register(TOKEN, registration(2))), "Register is not for the learner"),
        (b"", "closed its connection"),
        (encode(Ring(9)), "group 9 of 2"),
    ],
    ids=["kind", "doorbell", "size", "field", "reply", "register", "empty", "group"],
)
def test_malformed_bytes_end_their_own_lease_only(learner: EchoLearner, data: bytes, named: str) -> None:
    with learner.connect(registration(1)) as bystander, RawActor(learner) as actor:
        step(bystander, 0, seed=0, first=True)
        actor.block.count_request(0)
        actor.sock.send(data)
        assert named in actor.expect_drop()
        closed = learner.event(LeaseClosed)
        assert closed.lease == actor.lease
        assert named in closed.reason
        assert learner.server.counts().quarantined == 1  # it could still write
        actor.sock.close()
        learner.until(lambda: learner.server.counts().quarantined == 0)
        step(bystander, 0, seed=1)


@pytest.mark.parametrize("data", [b"\x00junk", encode(Ring(0)), encode(Heartbeat()), b"x" * 65_537])
def test_a_peer_that_does_not_register_first_is_dropped(learner: EchoLearner, data: bytes) -> None:
    with learner.connect() as bystander, RawActor(learner, register=False) as actor:
        actor.sock.send(data)
        assert actor.expect_drop()
        with pytest.raises(ConnectionLost):
            receive(actor.sock)
        step(bystander, 0, seed=0, first=True)


def test_a_second_ring_in_flight_ends_the_lease(learner: EchoLearner) -> None:
    learner.answering = False
    with RawActor(learner) as actor:
        actor.ring(0)
        learner.until(lambda: learner.rings)
        actor.ring(0)
        assert "group 0 while its request was in flight" in actor.expect_drop()
        assert [rang.group for rang in learner.rings] == [0]


def test_a_first_request_that_is_no_reset_ends_the_lease(learner: EchoLearner) -> None:
    with learner.connect() as actor:
        write(actor, 1, seed=0, first=False)
        actor.rows(1)["first"][:-1] = True
        actor.ring(1)
        with pytest.raises(ConnectionLost, match="group 1 does not begin with a reset"):
            actor.wait(TIMEOUT)
        assert learner.rings == []


def test_a_ring_without_its_counter_ends_the_lease(learner: EchoLearner) -> None:
    with RawActor(learner) as actor:
        actor.block.rows(0)["first"][:] = True
        actor.sock.send(encode(Ring(0)))
        assert "request counter 0 after 0 replies" in actor.expect_drop()


def test_a_crash_ends_the_lease_and_frees_its_block(learner: EchoLearner) -> None:
    with RawActor(learner) as actor:
        actor.ring(0)
    closed = learner.event(LeaseClosed)
    assert closed.lease == actor.lease
    assert closed.reason == "the actor closed its connection"
    assert learner.server.counts().free == learner.slab.blocks


def test_a_fault_is_reported_although_replies_were_never_read(learner: EchoLearner) -> None:
    with RawActor(learner) as actor:
        actor.ring(1)
        learner.until(lambda: learner.rings)
        actor.ring(0)
        actor.sock.send(encode(Fault("Traceback: the simulator crashed")))
    assert learner.event(FaultReported).text == "Traceback: the simulator crashed"
    kinds = [type(event) for event in learner.events]
    learner.event(LeaseClosed)
    assert kinds.index(FaultReported) < len(kinds)
    assert isinstance(learner.events[-1], LeaseClosed)


def test_report_fault_reaches_the_learner(learner: EchoLearner) -> None:
    with learner.connect() as actor:
        actor.report_fault("x" * 100_000 + "the end")
    assert learner.event(FaultReported).text.endswith("the end")


def test_an_actor_that_reports_without_end_is_dropped(learner: EchoLearner) -> None:
    """Every fault is shown to people and written to the log."""
    with learner.connect(registration(1)) as bystander, RawActor(learner) as actor:
        for number in range(control.MAX_FAULTS + 1):
            actor.sock.send(encode(Fault(f"fault {number}", "hung")))
        assert f"more than {control.MAX_FAULTS} faults of one lease" in actor.expect_drop()
        learner.event(LeaseClosed)
        faults = [event for event in learner.events if isinstance(event, FaultReported)]
        assert [(fault.text, fault.kind) for fault in faults] == [
            (f"fault {number}", "hung") for number in range(control.MAX_FAULTS)
        ]
        step(bystander, 0, seed=0, first=True)


class Clock:
    """Seconds that pass when told so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def run(self, learner: EchoLearner, until: float) -> None:
        """Let seconds pass one after the other, as for a learner that never stands still."""
        while self.now < until:
            self.now += 1.0
            learner.call(lambda: None)


def test_a_lease_without_heartbeat_expires_and_its_block_waits_for_the_writer() -> None:
    clock = Clock()
    with EchoLearner(lease_seconds=20.0, clock=clock) as learner, RawActor(learner) as actor:
        clock.run(learner, until=19.0)
        actor.sock.send(encode(Heartbeat()))
        actor.ring(0)  # both are read in one go, at 19 s
        assert receive(actor.sock) == (Reply(0), None)
        clock.run(learner, until=38.0)
        actor.ring(1)
        assert receive(actor.sock) == (Reply(1), None)
        clock.run(learner, until=59.0)
        assert "nothing was heard from the actor for 20 s" in actor.expect_drop()
        closed = learner.event(LeaseClosed)
        assert (closed.lease, closed.ending) == (actor.lease, "silent")
        assert learner.server.metrics()["lease/dropped_silent"] == 1
        assert learner.server.counts().quarantined == 1
        actor.sock.close()
        learner.until(lambda: learner.server.counts().free == learner.slab.blocks)


def test_a_learner_that_was_stopped_itself_drops_nobody() -> None:
    clock = Clock()
    with EchoLearner(lease_seconds=20.0, clock=clock) as learner, RawActor(learner) as actor:
        clock.now = 1000.0
        learner.call(lambda: None)
        actor.ring(0)
        assert receive(actor.sock) == (Reply(0), None)
        assert learner.server.counts().active == 1
        clock.run(learner, until=1030.0)
        assert "nothing was heard" in actor.expect_drop()


def test_heartbeats_come_by_themselves(learner: EchoLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    heartbeat = learner.server.table.heartbeat

    def spy(lease_id: int, now: float) -> None:
        beats.append(lease_id)
        heartbeat(lease_id, now)

    monkeypatch.setattr(learner.server.table, "heartbeat", spy)
    with learner.connect(heartbeat_seconds=0.01) as actor:
        deadline = time.monotonic() + TIMEOUT
        while len(beats) < 3:
            assert actor.wait(0.01) is None
            assert time.monotonic() < deadline
        assert set(beats) == {actor.lease_id}


def test_a_peer_that_never_registers_is_closed() -> None:
    clock = Clock()
    with (
        EchoLearner(clock=clock) as learner,
        RawActor(learner, register=False) as silent,
        RawActor(learner),  # it was accepted later, so the silent one has been accepted
    ):
        clock.now = control.REGISTER_SECONDS + 1.0
        learner.server.wake()
        with pytest.raises(ConnectionLost):
            receive(silent.sock)


def test_too_many_unregistered_peers_are_turned_away(
    learner: EchoLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_PENDING", 1)
    with RawActor(learner, register=False), RawActor(learner, register=False) as second:
        message, _ = receive(second.sock)
        assert isinstance(message, messages.Refused)
        assert message.retryable


def test_an_actor_that_does_not_read_never_blocks_the_learner(learner: EchoLearner) -> None:
    with learner.connect(registration(1)) as bystander, RawActor(learner) as deaf:
        number = 0
        while not any(isinstance(event, LeaseClosed) for event in learner.events):
            deaf.block.rows(0)["first"][:] = True
            deaf.block.count_request(0)
            try:
                deaf.sock.send(encode(Ring(0)))
            except BrokenPipeError:
                break
            number += 1
            learner.until(lambda n=number: len(learner.rings) >= n or len(learner.events) > 2)
        assert "does not read its replies" in learner.event(LeaseClosed).reason
        step(bystander, 0, seed=0, first=True)


def test_the_reply_to_a_dead_lease_is_discarded(learner: EchoLearner) -> None:
    learner.answering = False
    with RawActor(learner) as actor:
        actor.ring(0)
        learner.until(lambda: learner.rings)
        learner.call(lambda: learner.server.hold([actor.lease.id]))
    learner.event(LeaseClosed)
    assert learner.server.counts().quarantined == 1  # a batch still reads its rows
    learner.call(lambda: learner.answer(learner.rings[0]))
    learner.call(lambda: learner.server.release([actor.lease.id]))
    learner.until(lambda: learner.server.counts().free == learner.slab.blocks)


# How it ends


def test_the_end_of_the_run_reaches_present_and_late_actors(learner: EchoLearner) -> None:
    with learner.connect() as actor:
        learner.call(lambda: learner.server.tell_exit("all steps are done"))
        with pytest.raises(Exit, match="all steps are done") as raised:
            actor.wait(TIMEOUT)
        assert raised.value.code == "finished"
        with pytest.raises(Exit, match="all steps are done"):
            learner.connect(registration(1))


def test_the_last_word_is_heard_although_the_learner_closed_with_unread_rings() -> None:
    with EchoLearner(answering=False) as learner:
        actor = learner.connect()

        def hang_up() -> None:
            write(actor, 0, seed=0, first=True)
            actor.ring(0)  # stays unread
            learner.server.tell_exit("all steps are done")
            learner.stopping = True

        learner.call(hang_up)
        learner.event(LeaseOpened)
    with actor, pytest.raises(Exit, match="all steps are done"):
        actor.wait(TIMEOUT)


@pytest.mark.parametrize("attempt", [lambda actor: actor.wait(TIMEOUT), lambda actor: actor.ring(0)])
def test_a_learner_that_is_gone_is_a_lost_connection(attempt: Callable[[Connection], object]) -> None:
    with EchoLearner() as learner:
        actor = learner.connect()
    with actor, pytest.raises(ConnectionLost, match="closed the control socket"):
        attempt(actor)


def test_no_learner_is_a_lost_connection_that_names_the_path(tmp_path: Path) -> None:
    endpoint = Endpoint(socket=str(tmp_path / "control"))
    with pytest.raises(ConnectionLost, match=f"{tmp_path}/control"):
        connect(endpoint, TOKEN, registration(), BlockLayout(SPEC, 2, 4), RpcConfig(), 5.0)


def test_a_learner_that_does_not_answer_is_given_up_in_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as busy:
        busy.bind(str(tmp_path / "control"))
        busy.listen()
        rpc = RpcConfig(connect_seconds=0.05)
        with pytest.raises(ConnectionLost, match=r"within 0\.05 s"):
            connect(
                Endpoint(socket=str(tmp_path / "control")),
                TOKEN,
                registration(),
                BlockLayout(SPEC, 2, 4),
                rpc,
                5.0,
            )


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [(Endpoint(gateway="h:1"), "slab"), (Endpoint(socket="/s"), "grpc"), (Endpoint(), "auto")],
)
def test_an_endpoint_without_the_path_asked_for_is_named(endpoint: Endpoint, path: str) -> None:
    rpc = RpcConfig(path=path)
    with pytest.raises(ConnectionLost, match="endpoint"):
        connect(endpoint, TOKEN, registration(), BlockLayout(SPEC, 2, 4), rpc, 5.0)


def test_endpoints_travel_as_json() -> None:
    endpoint = Endpoint("/run/user/1/seedflow-x/control", "10.0.0.1:4000")
    assert Endpoint.from_json(json.loads(json.dumps(endpoint.to_json()))) == endpoint
    with pytest.raises(TransportError, match="gateway = 5"):
        Endpoint.from_json({"socket": None, "gateway": 5})

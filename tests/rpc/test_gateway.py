"""The remote path does what the slab does: one learner, actors behind a gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from seedflow.config import RpcConfig
from seedflow.errors import RegistrationRefused
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint, Exit
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout
from seedflow.rpc.slab_client import SlabConnection
from seedflow.rpc.transport import FaultReported
from seedflow.specs import EnvSpec
from tests.rpc.echo_learner import TOKEN, expected_actions
from tests.rpc.gateway_rig import TIMEOUT, RecordingLearner, Rig, fill, pixels, running, step, until

MIXED = EnvSpec.from_spaces(
    gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (5, 3), np.uint8),
        pair=gym.spaces.Tuple(
            (gym.spaces.Box(-1, 1, (2,), np.float64), gym.spaces.Box(-1, 1, (), np.float16))
        ),
        switches=gym.spaces.MultiBinary(3),
        room=gym.spaces.Discrete(7),
    ),
    gym.spaces.Discrete(4, start=1),
)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with running(RecordingLearner(MIXED), tmp_path_factory.mktemp("gateway")) as rig:
        yield rig


@pytest.fixture
def rig(lasting: Rig) -> Iterator[Rig]:
    yield lasting
    lasting.hang_up()


def test_rows_and_actions_arrive_as_over_the_slab(rig: Rig) -> None:
    learner = rig.learner
    local = SlabConnection.open(
        learner.socket, TOKEN, learner.registered(rig.index()), learner.layout, TIMEOUT, 5.0
    )
    remote = rig.connect()
    with local:
        for t in range(4):
            for group in (0, 1):
                seed = 10 * t + group
                here = step(local, group, seed, first=t == 0)
                there = step(remote, group, seed, first=t == 0)
                arrived = [learner.received[c.lease_id, group][t] for c in (local, remote)]
                for name, sent in here.items():
                    np.testing.assert_array_equal(there[name], sent, err_msg=name)
                    if name != "action":
                        np.testing.assert_array_equal(arrived[0][name], sent, err_msg=name)
                        np.testing.assert_array_equal(arrived[1][name], sent, err_msg=name)
                np.testing.assert_array_equal(here["action"], expected_actions(here, MIXED.num_actions))


def test_a_lease_names_its_environments(rig: Rig) -> None:
    index = rig.index()
    connection = rig.connect(index)
    assert connection.env_ids == range(6 * index, 6 * index + 6)
    assert (connection.lease.groups, connection.lease.envs) == (2, 3)


def test_both_groups_may_be_in_flight_together(rig: Rig) -> None:
    connection = rig.connect()
    for group in (0, 1):
        fill(connection, group, seed=group, first=True)
        connection.ring(group)
    assert {connection.wait(TIMEOUT), connection.wait(TIMEOUT)} == {0, 1}
    assert connection.wait(0.0) is None


def test_every_stream_is_served_however_many_there_are(rig: Rig) -> None:
    connections = [rig.connect() for _ in range(16)]
    for connection in connections:
        fill(connection, 0, seed=1, first=True)
        connection.ring(0)
    assert [connection.wait(TIMEOUT) for connection in connections] == [0] * 16
    for connection in connections:
        connection.close()


@pytest.mark.parametrize(
    ("envs", "shape"),
    [(64, (4, 84, 84)), (128, (4, 128, 128))],
    ids=["1.8 MB", "8.4 MB"],
)
def test_a_large_group_fits_into_a_message(envs: int, shape: tuple[int, ...], tmp_path: Path) -> None:
    learner = RecordingLearner(pixels(*shape), groups=1, envs=envs, actors=1)
    with running(learner, tmp_path) as rig:
        connection = rig.connect()
        for t in range(2):
            sent = step(connection, 0, seed=t, first=t == 0)
            np.testing.assert_array_equal(
                learner.received[connection.lease_id, 0][t]["observation"], sent["observation"]
            )
            np.testing.assert_array_equal(sent["action"], expected_actions(sent, num_actions=6))


def test_a_group_that_fits_into_no_message_is_refused_before_it_connects() -> None:
    layout = BlockLayout(pixels(4, 128, 128), groups=1, envs=1100)
    registration = Registration("train", 0, 0, layout.spec.fingerprint, layout.groups, layout.envs)
    with pytest.raises(RegistrationRefused, match=r"72\d{6} bytes a step.*actor\.envs_per_group") as refused:
        GrpcConnection.open("127.0.0.1:1", "token", registration, layout, TIMEOUT, 5.0)
    assert not refused.value.retryable


def test_a_wrong_token_is_refused_for_good(rig: Rig) -> None:
    with pytest.raises(RegistrationRefused, match="token") as refused:
        rig.connect(token="0" * 64)
    assert not refused.value.retryable
    assert TOKEN not in str(refused.value)


def test_other_arrays_are_refused_for_good(rig: Rig) -> None:
    with pytest.raises(RegistrationRefused, match="fingerprint") as refused:
        rig.connect(fingerprint=pixels(84, 84).fingerprint)
    assert not refused.value.retryable


def test_a_full_learner_says_to_try_again(rig: Rig) -> None:
    with pytest.raises(RegistrationRefused, match="full") as refused:
        rig.connect(index=500)
    assert refused.value.retryable


def test_the_same_generation_is_refused_and_a_higher_one_takes_over(rig: Rig) -> None:
    index = rig.index()
    older = rig.connect(index, generation=1)
    step(older, 0, seed=0, first=True)
    with pytest.raises(RegistrationRefused, match=r"generation 1 of train actor \d+ is already connected"):
        rig.connect(index, generation=1)
    newer = rig.connect(index, generation=2)
    with pytest.raises(Exit) as told:
        older.wait(TIMEOUT)
    assert told.value.code == "superseded"
    with pytest.raises(Exit):
        older.ring(0)
    step(newer, 0, seed=1, first=True)


def test_an_actor_whose_heart_does_not_beat_keeps_its_lease_as_long_as_its_process_answers(
    tmp_path: Path,
) -> None:
    with running(RecordingLearner(pixels(4), lease_seconds=4.0), tmp_path) as rig:
        actor = rig.connect(heartbeat_seconds=1000.0)
        step(actor, 0, seed=0, first=True)
        assert actor.wait(10.0) is None
        step(actor, 0, seed=1)
        assert rig.learner.server.metrics()["lease/registrations"] == 1


def test_a_fault_reaches_the_learner(rig: Rig) -> None:
    connection = rig.connect()
    connection.report_fault("the environment ☃ broke")
    connection.close()
    until(lambda: rig.learner.closed(connection.lease_id), "the end of the lease")
    faults = [event for event in rig.learner.events if isinstance(event, FaultReported)]
    assert [fault.text for fault in faults if fault.lease.id == connection.lease_id] == [
        "the environment ☃ broke"
    ]


def test_close_leaves_no_thread_and_may_be_repeated(rig: Rig) -> None:
    connection = rig.connect()
    before = threading.active_count()
    another = rig.connect()
    step(another, 0, seed=0, first=True)
    another.close()
    another.close()
    until(lambda: threading.active_count() <= before, "the threads of the closed connection")
    until(lambda: rig.learner.closed(another.lease_id), "the end of the lease")
    step(connection, 0, seed=0, first=True)


def test_the_end_of_the_run_reaches_remote_actors(tmp_path: Path) -> None:
    learner = RecordingLearner(pixels(4))
    with running(learner, tmp_path) as rig:
        connection = rig.connect()
        learner.call(lambda: learner.server.tell_exit("trained long enough"))
        with pytest.raises(Exit, match="trained long enough") as told:
            connection.wait(TIMEOUT)
        assert told.value.code == "finished"
        with pytest.raises(Exit, match="trained long enough"):
            rig.connect()


@pytest.mark.parametrize("path", ["auto", "grpc"])
def test_an_actor_elsewhere_takes_the_gateway(path: str, rig: Rig, tmp_path: Path) -> None:
    learner = rig.learner
    socket = str(tmp_path / "of another host") if path == "auto" else learner.socket
    with connect(
        Endpoint(socket=socket, gateway=rig.gateway.address),
        TOKEN,
        learner.registered(rig.index()),
        learner.layout,
        RpcConfig(path=path),
        5.0,
    ) as connection:
        assert isinstance(connection, GrpcConnection)
        step(connection, 1, seed=3, first=True)


def test_a_proxy_of_the_environment_is_not_asked(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    step(rig.connect(), 0, seed=0, first=True)

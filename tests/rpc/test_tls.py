"""The stream between hosts with certificates: who gets in, and what a listener on the line learns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seedflow.config.tree import RpcConfig
from seedflow.errors import ConnectionLost, TransportError
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Connection, Endpoint
from seedflow.rpc.gateway import GatewayStart
from seedflow.rpc.tls import Tls
from tests.rpc.certificates import authority
from tests.rpc.echo_learner import TOKEN
from tests.rpc.gateway_rig import RecordingLearner, Rig, pixels, running, step
from tests.rpc.line import line_to

NAME = "workers.example"


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    tls = authority("cluster").tls(NAME)
    with running(RecordingLearner(pixels(64)), tmp_path_factory.mktemp("tls"), tls) as rig:
        yield rig


def attempt(
    rig: Rig, tls: Tls | None, gateway: str | None = None, name: str | None = NAME, seconds: float = 5.0
) -> Connection:
    return connect(
        Endpoint(None, gateway or rig.gateway.address, name),
        TOKEN,
        rig.learner.registered(rig.index()),
        rig.learner.layout,
        RpcConfig(path="grpc", connect_seconds=seconds),
        5.0,
        tls,
    )


def test_an_actor_of_the_cluster_is_served(rig: Rig) -> None:
    with attempt(rig, authority("cluster").tls("other.example"), seconds=60.0) as actor:
        for seed in range(3):
            step(actor, 0, seed, first=seed == 0)


@pytest.mark.parametrize("secure", [True, False])
def test_who_listens_on_the_line_learns_neither_token_nor_observations(
    rig: Rig, secure: bool, tmp_path: Path
) -> None:
    """And does without certificates, so that the test is one."""

    def heard(rig: Rig, tls: Tls | None) -> tuple[bytes, bytes]:
        with line_to(rig.gateway.address) as line:
            name = NAME if tls is not None else None
            with attempt(rig, tls, line.address, name, seconds=60.0) as actor:
                sent = step(actor, 0, seed=3, first=True)
            return bytes(line.heard), sent["observation"].tobytes()

    if secure:
        line, sent = heard(rig, authority("cluster").tls())
    else:
        with running(RecordingLearner(pixels(64)), tmp_path) as plain:
            line, sent = heard(plain, None)
    assert len(line) > len(sent)
    assert (TOKEN.encode() in line) is not secure
    assert (sent in line) is not secure


def test_who_shows_no_certificate_of_the_cluster_does_not_get_in(rig: Rig) -> None:
    granted = rig.learner.server.counts().granted
    cluster, stranger = authority("cluster"), authority("somebody else")
    forged = replace(stranger.tls(), authority=cluster.pem)  # believes the gateway, and shows its own
    for tls in (forged, stranger.tls()):
        with pytest.raises(ConnectionLost):
            attempt(rig, tls)
    assert rig.learner.server.counts().granted == granted


def test_an_actor_shows_its_token_to_no_gateway_of_another_name(rig: Rig) -> None:
    with pytest.raises(ConnectionLost):
        attempt(rig, authority("cluster").tls(), name="else.example")


@pytest.mark.parametrize(
    ("name", "tls", "words"),
    [(NAME, None, "the gateway uses TLS and the actor does not"), (None, "cluster", "the actor uses TLS")],
)
def test_one_end_alone_with_a_certificate_is_named(
    name: str | None, tls: str | None, words: str, rig: Rig
) -> None:
    with pytest.raises(ConnectionLost, match=words):
        attempt(rig, None if tls is None else authority(tls).tls(), name=name)


def test_a_key_is_never_shown(rig: Rig) -> None:
    tls = authority("cluster").tls()
    body = tls.key.splitlines()[1]
    start = GatewayStart(TOKEN, "socket", "127.0.0.1", None, rig.learner.layout, 30.0, tls)
    assert body not in repr(tls) + repr(start)
    assert Tls.from_json(tls.to_json()) == tls
    for name in ("authority", "certificate", "key", "name"):
        with pytest.raises(TransportError, match=rf"tls\.{name} is NoneType") as raised:
            Tls.from_json({**tls.to_json(), name: None})
        assert body not in str(raised.value)


def test_the_rows_are_those_that_were_sent(rig: Rig) -> None:
    with attempt(rig, authority("cluster").tls(), seconds=60.0) as actor:
        sent = step(actor, 1, seed=5, first=True)
        received = rig.learner.received[actor.lease_id, 1][0]
    np.testing.assert_array_equal(received["observation"], sent["observation"])

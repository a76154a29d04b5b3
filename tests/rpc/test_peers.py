"""Both ends of a unix socket look whose process the other one is, before they say anything."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from seedflow.config.tree import RpcConfig
from seedflow.errors import ConnectionLost
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.learner_link import LearnerLink
from seedflow.rpc.peers import other_user
from seedflow.rpc.slab import BlockLayout
from tests.rpc.echo_learner import SPEC, TIMEOUT, TOKEN, registration


def test_the_same_user_is_no_stranger_and_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        assert other_user(left) is None
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: 123456)
        assert other_user(left) == f"user {user}"


@pytest.fixture
def imposter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A socket where the learner's was, of a process that looks like somebody else's."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(tmp_path / "control"))
    server.listen()
    server.settimeout(TIMEOUT)
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    return server


def heard_by(server: socket.socket) -> bytes:
    """All that a peer has said to the server before it hung up."""
    accepted, _ = server.accept()
    with accepted:
        accepted.settimeout(TIMEOUT)
        return accepted.recv(65536)


def test_an_actor_shows_its_token_to_no_other_user(tmp_path: Path, imposter: socket.socket) -> None:
    with imposter:
        endpoint = Endpoint(socket=str(tmp_path / "control"))
        with pytest.raises(ConnectionLost, match="is not this user's but that of user"):
            connect(endpoint, TOKEN, registration(), BlockLayout(SPEC, 2, 4), RpcConfig(), 5.0)
        assert heard_by(imposter) == b""


def test_a_gateway_passes_nothing_on_to_another_user(tmp_path: Path, imposter: socket.socket) -> None:
    with imposter:
        with pytest.raises(ConnectionLost, match="has taken its socket"):
            asyncio.run(LearnerLink.open(str(tmp_path / "control"), TIMEOUT))
        assert heard_by(imposter) == b""

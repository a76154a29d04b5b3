"""All that crosses the network of a machine during a whole run, recorded."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

import seedflow
from seedflow.config import parse_config
from tests.rpc.certificates import authority
from tests.runs.rig import TINY

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, to record packets"),
]

OBSERVED = b"what the environment has shown."
EVERY_PROTOCOL = 0x0003


class Postcard(gymnasium.Env[Any, Any]):
    """Shows one text, again and again."""

    observation_space = gymnasium.spaces.Box(0, 255, (len(OBSERVED),), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return np.frombuffer(OBSERVED, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.frombuffer(OBSERVED, np.uint8), 0.0, False, False, {}


class Recording:
    """Counts packets, and those that hold one of some texts."""

    def __init__(self, *texts: bytes) -> None:
        self.texts, self.packets, self.found = texts, 0, dict.fromkeys(texts, 0)

    def take(self, packet: bytes) -> None:
        self.packets += 1
        for text in self.texts:
            self.found[text] += text in packet


@contextlib.contextmanager
def recorded(*texts: bytes) -> Iterator[Recording]:
    """Record the loopback device, over which everything on one machine goes."""
    recording, stop = Recording(*texts), threading.Event()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        line.bind(("lo", 0))
        line.settimeout(0.2)

        def listen() -> None:
            while not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    recording.take(line.recv(1 << 17))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield recording
        finally:
            stop.set()
            thread.join()


def train(run_dir: Path, security: Security | None) -> Recording:
    config = parse_config(
        {**TINY, "env": {}, "rpc": {"path": "grpc"}, "metrics": {**TINY["metrics"], "console": "off"}}
    )
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, security=security, protocol=None, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
        recorded(OBSERVED) as recording,
    ):
        seedflow.train(config, client=client, run_dir=run_dir, env_fn=Postcard)
    return recording


def test_without_tls_the_observations_can_be_read(tmp_path: Path) -> None:
    """Else the next test would show nothing."""
    recording = train(tmp_path / "run", None)
    assert recording.found[OBSERVED] > 100


def test_with_tls_none_can(tmp_path: Path) -> None:
    paths = authority("cluster").files(tmp_path, common="our cluster")
    ends = ("client", "scheduler", "worker")
    security = Security(
        tls_ca_file=paths["authority"],
        require_encryption=True,
        **{f"tls_{end}_cert": paths["certificate"] for end in ends},
        **{f"tls_{end}_key": paths["key"] for end in ends},
    )
    recording = train(tmp_path / "run", security)
    assert recording.packets > 1000
    assert recording.found[OBSERVED] == 0

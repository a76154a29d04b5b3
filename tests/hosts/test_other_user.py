"""Another user of the same machine: what he can read, where he gets in."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedflow.rpc.control import ControlServer
from seedflow.rpc.leases import LeaseTable
from seedflow.rpc.slab import BlockLayout, Slab
from tests.rpc.echo_learner import TOKEN
from tests.rpc.gateway_rig import RecordingLearner, Rig, pixels, running
from tests.runs.rig import Launched, Launcher, launcher, steps, until

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, to be another user"),
]

STRANGER = Path(__file__).with_name("stranger.py")


def unused_user() -> int:
    """The number of a user whom nobody knows."""
    used = {entry.pw_uid for entry in pwd.getpwall()}
    return next(number for number in range(41_000, 60_000) if number not in used)


class Stranger:
    """A process of another user that tries what it is asked to."""

    def __init__(self) -> None:
        self.user = unused_user()
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(
            [sys.executable, str(STRANGER), str(self.user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root},
        )
        assert self._answer() == [self.user] * 3

    def ask(self, question: str, *arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([question, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def stranger() -> Iterator[Stranger]:
    stranger = Stranger()
    yield stranger
    stranger.close()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that everybody may enter, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp") as path:
        Path(path).chmod(0o755)
        yield Path(path)


def test_slab_and_socket_are_closed_to_him(stranger: Stranger) -> None:
    layout = BlockLayout(pixels(4), 2, 3)
    table = LeaseTable(1, 0, 1, 2, 3, layout.spec.fingerprint, 30.0)
    with Slab(layout, table.blocks) as slab, ControlServer(layout, slab, table, "t" * 64) as server:
        me = os.getpid()
        assert os.readlink(f"/proc/self/fd/{slab.fd}").startswith("/memfd:seedflow-slab")
        assert stranger.ask("read", f"/proc/{me}/fd/{slab.fd}") == "PermissionError"
        assert stranger.ask("listing", f"/proc/{me}/fd") == "PermissionError"
        assert stranger.ask("listing", f"/proc/{me}/map_files") == "PermissionError"
        assert stranger.ask("read", f"/proc/{me}/mem") == "PermissionError"
        assert stranger.ask("read", f"/proc/{me}/maps") == "PermissionError"
        assert stranger.ask("read", f"/proc/{me}/environ") == "PermissionError"
        assert stranger.ask("listing", str(server.path.parent)) == "PermissionError"
        assert stranger.ask("connect_socket", str(server.path)) == "PermissionError"


def test_he_is_known_by_his_credentials_where_the_directory_lets_him_in(
    stranger: Stranger,
) -> None:
    """Modes may be lost, by a careless chmod or a file system without them; the kernel tells who he is."""
    spec = pixels(4).to_json()
    with RecordingLearner(pixels(4)) as learner:
        path = learner.server.path
        path.parent.chmod(0o777)
        path.chmod(0o777)
        assert stranger.ask("connect_socket", str(path)) == "done"
        until(lambda: learner.server.metrics()["control/strangers"] == 1, "the stranger to be noticed", 30)
        # Even with the token, which he cannot have.
        assert stranger.ask("register_socket", str(path), TOKEN, spec, 2, 3) == "nothing"
        # And his own actor would not have shown it to the learner of somebody else.
        assert stranger.ask("connect_client", str(path), TOKEN, spec, 2, 3) == "SocketUnreachable"
        assert learner.server.counts().granted == 0


def test_the_gateway_asks_him_for_the_token(stranger: Stranger, tmp_path: Path) -> None:
    with running(RecordingLearner(pixels(4)), tmp_path) as rig:
        spec = rig.learner.layout.spec.to_json()
        for token in ("", "0" * 64, TOKEN[:-1] + "e"):
            answer = stranger.ask("register_gateway", rig.gateway.address, token, spec, 2, 3)
            assert answer == "RegistrationRefused"
        assert rig.learner.server.counts().granted == 0
        check_hidden(stranger, rig)


def check_hidden(stranger: Stranger, rig: Rig) -> None:
    pid = rig.gateway.pid
    assert pid is not None
    assert stranger.ask("descriptors", pid) == "nothing"
    assert TOKEN not in stranger.ask("visible", pid)


@pytest.fixture
def launch(open_place: Path) -> Iterator[Launcher]:
    with launcher(open_place) as started:
        yield started


def secrets_of(launched: Launched) -> dict[int, tuple[bytes, bytes]]:
    """Arguments and environment of every process of a run."""
    return {
        pid: ((Path("/proc") / str(pid) / "cmdline").read_bytes(), Path(f"/proc/{pid}/environ").read_bytes())
        for pid in launched.family()
    }


SCRIPT = """
import sys
from pathlib import Path
import seedflow

if __name__ == "__main__":
    config = seedflow.load_config("tiny.yaml", ["rpc.path=auto", "train.total_agent_steps=1000000000"])
    with seedflow.train(config, run_dir="run", block=False) as run:
        token = run._run._launches._start["token"]
        scheduler = run._run._client.scheduler.address
        Path("told").write_text(f"{token} {scheduler} {run._run._roster.endpoint['socket']}")
        while not Path("stop").exists() and not run.wait(0.2):
            pass
"""


def test_he_learns_nothing_of_a_run_and_gets_in_nowhere(stranger: Stranger, launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    (launch.directory / "own.py").write_text(SCRIPT)
    launched = launch(sys.executable, "own.py")
    launched.until(lambda: steps(run_dir) > 100 and (launch.directory / "told").exists(), "training")
    token, scheduler, socket_path = (launch.directory / "told").read_text().split()

    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert stranger.ask("listing", str(launch.directory)) == "done"  # so it is not the directory above
    for path in (run_dir, run_dir / "logs", run_dir / "checkpoints"):
        assert stranger.ask("listing", str(path)) == "PermissionError"
    for name in ("config.yaml", "metrics.jsonl", ".lock", "logs/learner-0-g0.log"):
        assert (run_dir / name).exists()
        assert stranger.ask("read", str(run_dir / name)) == "PermissionError"

    for part in ("learner", "actor", "rpc.gateway"):
        assert len(launched.family(f"seedflow.{part}")) == 1
    shown = secrets_of(launched)
    assert len(shown) > 5
    for pid, (arguments, environment) in shown.items():
        assert stranger.ask("descriptors", pid) == "nothing"
        assert stranger.ask("read", f"/proc/{pid}/environ") == "PermissionError"
        assert token not in stranger.ask("visible", pid)
        assert b"PRIVATE KEY" not in arguments + environment
        assert token.encode() not in arguments + environment

    assert stranger.ask("connect_socket", socket_path) == "PermissionError"
    assert scheduler.startswith("tls://127.0.0.1:")
    assert "done" not in stranger.ask("dask", scheduler)
    assert "done" not in stranger.ask("dask", scheduler.replace("tls://", "tcp://"))

    saved = [path for path in run_dir.rglob("*") if path.is_file()]
    assert not [path for path in saved if token.encode() in path.read_bytes()]
    (launch.directory / "stop").touch()
    assert launched.end() == 0, launched.err
    assert token not in launched.out + launched.err

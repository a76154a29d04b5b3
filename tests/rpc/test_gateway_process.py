"""The gateway as a child process: its port, its end, and what it shows of itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from seedflow.errors import ConnectionLost, TransportError
from seedflow.rpc.gateway import GatewayStart
from seedflow.rpc.gateway_process import GatewayProcess
from tests.rpc.echo_learner import TOKEN
from tests.rpc.gateway_rig import HOST, TIMEOUT, RecordingLearner, Rig, pixels, running, until

SPEC = pixels(4)


def gateway(tmp_path: Path, host: str = HOST, ports: tuple[int, int] | None = None) -> GatewayProcess:
    """A gateway without a learner."""
    return GatewayProcess(
        TOKEN,
        str(tmp_path / "socket"),
        host,
        ports,
        SPEC,
        groups=1,
        envs=1,
        lease_seconds=30.0,
        log_path=tmp_path / "gateway.log",
    )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(RecordingLearner(SPEC), tmp_path) as rig:
        yield rig


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on, with a free one above it."""
    while True:
        with socket.create_server((HOST, 0)) as server:
            port = server.getsockname()[1]
            try:
                with socket.create_server((HOST, port + 1)):
                    pass
            except (OSError, OverflowError):
                continue
            yield port
            return


def test_it_ends_when_its_input_closes(rig: Rig) -> None:
    connection = rig.connect()
    assert rig.gateway.stop(TIMEOUT) == 0
    with pytest.raises(ConnectionLost):
        connection.wait(TIMEOUT)


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = """
import sys, time
from pathlib import Path
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.specs import EnvSpec
from tests.rpc.test_gateway_process import gateway
child = gateway(Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    until(lambda: not _runs(pid), "the gateway's end")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_stop_may_be_called_before_a_start_and_twice(tmp_path: Path) -> None:
    child = gateway(tmp_path)
    assert child.stop() is None
    assert child.poll() is None
    child.start(TIMEOUT)
    assert child.poll() is None
    assert child.stop(TIMEOUT) == 0
    assert child.stop(TIMEOUT) == 0
    assert child.returncode == 0


def test_a_running_gateway_is_not_started_again(tmp_path: Path) -> None:
    with gateway(tmp_path) as child:
        child.start(TIMEOUT)
        with pytest.raises(TransportError, match="already running"):
            child.start(TIMEOUT)


def test_it_takes_the_first_free_port_of_a_range(taken: int, tmp_path: Path) -> None:
    with gateway(tmp_path, ports=(taken, taken + 1)) as child:
        assert child.start(TIMEOUT) == taken + 1
        assert child.address == f"{HOST}:{taken + 1}"


def test_a_range_without_a_free_port_is_an_error_that_names_it(taken: int, tmp_path: Path) -> None:
    child = gateway(tmp_path, ports=(taken, taken))
    with pytest.raises(TransportError, match=rf"no port in rpc\.ports = \[{taken}, {taken}\] is free"):
        child.start(TIMEOUT)
    assert child.poll() is not None


def test_two_gateways_never_share_a_port(tmp_path: Path) -> None:
    with gateway(tmp_path) as first:
        port = first.start(TIMEOUT)
        with pytest.raises(TransportError, match="is free"):
            gateway(tmp_path, ports=(port, port)).start(TIMEOUT)


@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("0.0.0.0", "every address"),
        ("::", "every address"),
        ("192.0.2.1", "no address of this machine"),
        ("host.invalid", "cannot be resolved"),
    ],
)
def test_it_binds_an_address_of_its_own_only(host: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=rf"rpc\.interface = '{host}'.*{complaint}"):
        gateway(tmp_path, host=host).start(TIMEOUT)


def test_other_addresses_of_the_machine_are_not_bound(tmp_path: Path) -> None:
    with gateway(tmp_path) as child:
        port = child.start(TIMEOUT)
        with socket.socket() as client:
            client.settimeout(TIMEOUT)
            with pytest.raises(ConnectionRefusedError):
                client.connect(("127.0.0.2", port))


def test_the_token_shows_nowhere(rig: Rig) -> None:
    with pytest.raises(TransportError):
        rig.connect(token="not the token")
    rig.connect().close()
    process = Path(f"/proc/{rig.gateway.pid}")
    shown = [(process / name).read_bytes() for name in ("cmdline", "environ")]
    rig.gateway.stop(TIMEOUT)
    shown.append(rig.log_path.read_bytes())
    assert not any(TOKEN.encode() in text for text in shown)
    start = GatewayStart(TOKEN, "socket", HOST, None, rig.learner.layout, 30.0)
    assert TOKEN not in repr(start)


def imported(module: str) -> dict[str, Any]:
    """Import a module in a process of its own: what it loaded, and gRPC's switches when `grpc` was loaded."""
    program = f"""
import json, os, sys

class Watch:
    seen = None
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            Watch.seen = os.environ.get("GRPC_EXPERIMENTS")

sys.meta_path.insert(0, Watch())
import {module}
print(json.dumps({{"modules": sorted(sys.modules), "switches": Watch.seen}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("module", ["grpc_client", "gateway", "gateway_process"])
def test_the_remote_path_stays_light(module: str) -> None:
    loaded = imported(f"seedflow.rpc.{module}")
    assert not {"torch", "numba", "dask", "distributed"} & set(loaded["modules"])
    assert "-event_engine_client" in loaded["switches"]


def test_the_committed_modules_are_those_of_the_proto(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    assert protoc is not None
    package = Path(__file__).parents[2]
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{package}", f"--python_out={tmp_path}",
            f"--pyi_out={tmp_path}", f"--grpc_python_out={tmp_path}", "seedflow/rpc/seedflow.proto",
        ],
        check=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    for made in (tmp_path / "seedflow" / "rpc").iterdir():
        committed = (package / "seedflow" / "rpc" / made.name).read_text()
        assert _without_versions(committed) == _without_versions(made.read_text()), (
            f"run `make proto`: {made.name}"
        )


def _without_versions(text: str) -> list[str]:
    """Lines that do not name the generator's version."""
    return [line for line in text.splitlines() if "ersion" not in line and "VERSION" not in line]

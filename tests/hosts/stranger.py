"""What another user of the machine tries: ``stranger.py USER``; questions come in, answers go out, as lines.

It is started by the superuser, imports all that it needs, and then becomes the other user for good.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed
from distributed.security import Security

from seedflow.config.tree import RpcConfig
from seedflow.errors import ConnectionLost
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.leases import Registration
from seedflow.rpc.messages import Register, encode, receive
from seedflow.rpc.slab import BlockLayout
from seedflow.specs import EnvSpec

assert GrpcConnection is not None, "gRPC is loaded while its files can be read"


def become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def attempt(call: Callable[[], Any]) -> str:
    """``done`` where it worked, or the name of what was raised."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "done"


def read(path: str) -> str:
    return attempt(lambda: Path(path).open("rb").read(1))


def listing(path: str) -> str:
    return attempt(lambda: os.listdir(path))


def connect_socket(path: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        return attempt(lambda: sock.connect(path))


def register_socket(path: str, token: str, spec: Any, groups: int, envs: int) -> str:
    """Without looking who listens there, as seedflow's own client does. What the learner said."""
    fingerprint = EnvSpec.from_json(spec).fingerprint
    register = Register(token, Registration("train", 0, 99, fingerprint, groups, envs))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(path)
        try:
            sock.send(encode(register))
            return type(receive(sock)[0]).__name__
        except (ConnectionLost, OSError):
            return "nothing"


def connect_client(path: str, token: str, spec: Any, groups: int, envs: int) -> str:
    return _connect(Endpoint(socket=path), "slab", token, spec, groups, envs)


def register_gateway(gateway: str, token: str, spec: Any, groups: int, envs: int) -> str:
    return _connect(Endpoint(gateway=gateway), "grpc", token, spec, groups, envs)


def _connect(endpoint: Endpoint, path: Any, token: str, spec: Any, groups: int, envs: int) -> str:
    spec = EnvSpec.from_json(spec)
    layout = BlockLayout(spec, groups, envs)
    registration = Registration("train", 0, 99, spec.fingerprint, groups, envs)
    rpc = RpcConfig(path=path, connect_seconds=10)
    return attempt(lambda: connect(endpoint, token, registration, layout, rpc, 5.0).close())


def dask(address: str) -> str:
    """Connect to a Dask scheduler, with or without credentials of one's own, and run code there."""

    def run(security: Security | None) -> None:
        with distributed.Client(address, timeout=5, security=security, set_as_default=False) as client:
            client.run_on_scheduler(os.getpid)

    return attempt(lambda: run(None)) + "/" + attempt(lambda: run(Security.temporary()))


def visible(pid: int) -> str:
    """What ``ps`` shows of a process to everybody."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def descriptors(pid: int) -> str:
    """Try to open every file that a process has open, through its descriptors."""
    opened = [number for number in range(64) if read(f"/proc/{pid}/fd/{number}") == "done"]
    return f"opened {opened}" if opened else "nothing"


QUESTIONS: dict[str, Callable[..., str]] = {
    call.__name__: call
    for call in (
        read, listing, connect_socket, connect_client, register_socket, register_gateway, dask, visible,
        descriptors,
    )
}  # fmt: skip


def main() -> None:
    become(int(sys.argv[1]))
    print(json.dumps(os.getresuid()), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(QUESTIONS[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()

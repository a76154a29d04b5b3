"""The gateway process: remote actors' gRPC streams at one end, the learner's control socket at the other.

``python -m seedflow.rpc.gateway`` reads one JSON line from standard input (`GatewayStart`), binds a port,
prints ``{"port": n}`` or ``{"error": text}`` on standard output, then ``{"counts": {...}}`` every second, and
ends when standard input closes. It is a process of its own so that gRPC and the learner never wait for each
other's interpreter lock, and it keeps nothing that a restart could lose.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from seedflow.errors import ConfigError, TransportError
from seedflow.rpc.frames import SERVICE, parse_actor_message, serialize
from seedflow.rpc.gateway_counts import GatewayCounts
from seedflow.rpc.grpc_options import address, aio, check_payloads, grpc, server_options
from seedflow.rpc.relay import Relay
from seedflow.rpc.slab import BlockLayout
from seedflow.rpc.tls import Tls
from seedflow.specs import EnvSpec

DRAIN_SECONDS = 2.0
"""How long open streams may still deliver what the learner last said, once the gateway is told to end."""

TELL_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GatewayStart:
    """What a gateway is told at its start.

    Attributes
    ----------
    token
        The run token; never shown.
    socket
        Path of the learner's control socket.
    host
        Address to bind.
    ports
        ``(low, high)``: bind the first free one; None: any free port.
    layout
        Memory of one lease.
    lease_seconds
        How long an actor may be silent.
    tls
        The certificate that it shows; None: streams are not encrypted.
    """

    token: str = field(repr=False)
    socket: str
    host: str
    ports: tuple[int, int] | None
    layout: BlockLayout
    lease_seconds: float
    tls: Tls | None = None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GatewayStart:
        ports = value["ports"]
        layout = BlockLayout(EnvSpec.from_json(value["spec"]), int(value["groups"]), int(value["envs"]))
        return cls(
            token=str(value["token"]),
            socket=str(value["socket"]),
            host=str(value["host"]),
            ports=None if ports is None else (int(ports[0]), int(ports[1])),
            layout=layout,
            lease_seconds=float(value["lease_seconds"]),
            tls=Tls.from_json(value.get("tls")),
        )


class GatewayServicer:
    """Gives every stream a `Relay` of its own; streams share nothing but what is counted."""

    def __init__(self, start: GatewayStart) -> None:
        self._start = start
        self.counts = GatewayCounts()

    async def Steps(self, requests: Any, context: Any) -> None:
        """The stream of `seedflow.proto`; `context` is grpc.aio's, which carries both directions."""
        start = self._start
        await Relay(context, start.token, start.socket, start.layout, start.lease_seconds, self.counts).run()


def bind(server: Any, host: str, ports: tuple[int, int] | None, tls: Tls | None = None) -> int:
    """Bind the server to any free port, or to the first free one of a range, and return it.

    Raises
    ------
    ConfigError
        `host` is no address of this machine, or stands for all of them.
    TransportError
        Every port of the range is taken.
    """
    numeric = _numeric_address(host)
    low, high = (0, 0) if ports is None else ports
    for port in range(low, high + 1):
        try:
            where = address(numeric, port)
            if tls is None:
                bound = server.add_insecure_port(where)
            else:
                bound = server.add_secure_port(where, tls.server_credentials())
        except RuntimeError as error:
            log.info("port %d of %s is not free: %s", port, host, error)
            continue
        if bound:
            return int(bound)
    raise TransportError(
        f"no port in rpc.ports = [{low}, {high}] is free on {host}; widen the range or end what holds them"
        if ports is not None
        else f"no port can be bound on {host}"
    )


def _numeric_address(host: str) -> str:
    """The first address of `host`, checked to be one of this machine's own."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(
            f"rpc.interface = {host!r} cannot be resolved: {error}; name an address of this host"
        ) from error
    numeric = str(where[0])
    if not host or numeric in ("0.0.0.0", "::"):
        raise ConfigError(
            f"rpc.interface = {host!r} stands for every address of this machine; name the one that "
            "the actors reach"
        )
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((numeric, 0))
        except OSError as error:
            raise ConfigError(
                f"rpc.interface = {host!r} ({numeric}) is no address of this machine: {error}; "
                "name one that `ip address` shows"
            ) from error
    return numeric


async def serve(start: GatewayStart, stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Serve until `stdin` closes. Returns the exit code of the process."""
    server = aio.server(options=server_options(start.lease_seconds))
    servicer = GatewayServicer(start)
    steps = grpc.stream_stream_rpc_method_handler(servicer.Steps, parse_actor_message, serialize)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Steps": steps}),))
    try:
        check_payloads(start.layout)
    except ConfigError as error:
        log.warning("remote actors will be refused: %s", error)
    try:
        port = bind(server, start.host, start.ports, start.tls)
    except (ConfigError, TransportError) as error:
        _say(stdout, {"error": str(error)})
        return 3 if isinstance(error, ConfigError) else 1
    await server.start()
    _say(stdout, {"port": port})
    telling = asyncio.create_task(_tell(stdout, servicer.counts))
    try:
        await _closed(stdin)
    finally:
        telling.cancel()
        await server.stop(DRAIN_SECONDS)
    return 0


async def _tell(stdout: BinaryIO, counts: GatewayCounts) -> None:
    """Say every second that this process lives, and what it has counted; never wait for a reader."""
    os.set_blocking(stdout.fileno(), False)
    while True:
        line = json.dumps({"counts": counts.to_json()}).encode() + b"\n"
        with contextlib.suppress(
            BlockingIOError, BrokenPipeError
        ):  # so short a line is written in full or not
            os.write(stdout.fileno(), line)
        await asyncio.sleep(TELL_SECONDS)


async def _closed(stdin: BinaryIO) -> None:
    """Return when the pipe closes; whatever else arrives on it is ignored."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    try:
        while await reader.read(4096):
            pass
    finally:
        transport.close()


def _say(stdout: BinaryIO, message: dict[str, Any]) -> None:
    stdout.write(json.dumps(message).encode() + b"\n")
    stdout.flush()


def main() -> int:
    """Run the gateway on this process's standard input and output."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s gateway %(levelname)s %(message)s")
    # The one line of standard output is for the parent: whatever else prints goes to standard error.
    stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Unbuffered: bytes after the first line must stay in the pipe, where the event loop looks for its end.
    stdin = os.fdopen(0, "rb", buffering=0, closefd=False)
    line = stdin.readline()
    if not line:
        return 0
    with stdout:
        return asyncio.run(serve(GatewayStart.from_json(json.loads(line)), stdin, stdout))


if __name__ == "__main__":
    sys.exit(main())

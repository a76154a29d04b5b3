"""Whether the hosts of actors can reach the gateway's address, tried before the gateway is there.

The learner's worker listens for a moment where the gateway will, and a worker of each other host connects.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client

from seedflow.cluster.asking import run_on
from seedflow.cluster.survey import REPLY_SECONDS
from seedflow.errors import PlacementError

LISTEN_SECONDS = 60.0
"""After this the worker closes the port by itself, should nobody tell it to."""
CONNECT_SECONDS = 10.0


def check_reach(
    client: Client, learner: str, interface: str | None, ports: tuple[int, int] | None, actors: Sequence[str]
) -> None:
    """Try connections as actors will make them.

    Parameters
    ----------
    client
        A connection; the workers have our version of seedflow.
    learner
        Address of the learner's worker.
    interface, ports
        As `rpc.interface` and `rpc.ports`.
    actors
        Addresses of workers, one of each host.

    Raises
    ------
    PlacementError
        If the address cannot be bound, or a host cannot reach it; says which, and what to do.
    """
    if not actors:
        return
    name = f"_seedflow_{secrets.token_hex(4)}"
    bound = run_on(client, [learner], _listen(name, interface, ports, LISTEN_SECONDS), seconds=REPLY_SECONDS)[
        learner
    ]
    if isinstance(bound, Exception):
        raise PlacementError(
            f"the learner's worker {learner} cannot listen for its actors: {bound}"
        ) from bound
    host, port = bound
    try:
        answers = run_on(client, actors, _connect(host, port, name, CONNECT_SECONDS), seconds=REPLY_SECONDS)
    finally:
        run_on(client, [learner], _close(name), seconds=REPLY_SECONDS)
    failed = {address: error for address, error in answers.items() if error is not None}
    if failed:
        reasons = "; ".join(f"{address}: {error}" for address, error in failed.items())
        raise PlacementError(
            f"actors cannot reach the learner at {host}:{port} from {len(failed)} of {len(answers)} hosts: "
            f"{reasons}. Choose an address of the learner's host that they reach by rpc.interface (or start "
            "its worker with --interface), or open a range of ports there and name it in rpc.ports"
        )


def _listen(
    name: str, interface: str | None, ports: tuple[int, int] | None, seconds: float
) -> Callable[..., Any]:
    async def seedflow_listen(dask_worker: Any) -> tuple[str, int]:
        import asyncio

        from seedflow.cluster.addresses import address_to_bind

        host = address_to_bind(interface, dask_worker.ip)

        async def answer(reader: Any, writer: Any) -> None:
            writer.write(name.encode() + b"\n")
            await writer.drain()
            writer.close()

        problem: OSError | None = None
        for port in range(ports[0], ports[1] + 1) if ports else (0,):
            try:
                server = await asyncio.start_server(answer, host, port)
            except OSError as error:
                problem = error
                continue
            setattr(dask_worker, name, server)
            asyncio.get_running_loop().call_later(seconds, server.close)
            return host, server.sockets[0].getsockname()[1]
        assert problem is not None
        where = f"rpc.ports = {list(ports)}" if ports else "any port"
        raise OSError(f"{host} (rpc.interface), {where}: {problem}")

    return seedflow_listen


def _connect(host: str, port: int, name: str, seconds: float) -> Callable[..., Any]:
    async def seedflow_connect() -> str | None:
        import asyncio

        async def greet() -> str | None:
            reader, writer = await asyncio.open_connection(host, port)
            try:
                line = await reader.readline()
            finally:
                writer.close()
            return None if line.decode(errors="replace").strip() == name else "something else answers there"

        try:
            return await asyncio.wait_for(greet(), seconds)
        except TimeoutError:
            return f"no answer within {seconds:g} s"
        except OSError as error:
            return str(error)

    return seedflow_connect


def _close(name: str) -> Callable[..., Any]:
    async def seedflow_close(dask_worker: Any) -> None:
        server = getattr(dask_worker, name, None)
        if server is not None:
            delattr(dask_worker, name)
            server.close()

    return seedflow_close

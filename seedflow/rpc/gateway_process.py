"""The learner's side of a gateway: starts the child process, keeps its port, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from seedflow.errors import TransportError
from seedflow.rpc.gateway_counts import GatewayCounts
from seedflow.rpc.grpc_options import address
from seedflow.rpc.tls import Tls
from seedflow.specs import EnvSpec

_KILL_SECONDS = 5.0


class GatewayProcess:
    """One `python -m seedflow.rpc.gateway`, which the learner supervises.

    The first start fixes the port; every later start of this object binds the same one, so that remote
    actors find the gateway where it was. The gateway keeps no state: after a restart its actors register
    again. It ends by itself when this process ends, because its standard input closes.

    Parameters
    ----------
    token
        The run token, which every stream must name. It reaches the child through its standard input.
    socket
        Path of the learner's control socket.
    host
        The address to bind, which remote actors can reach; never all addresses of the machine.
    ports
        ``(low, high)``: the first free port of these; None: any free port.
    spec, groups, envs
        What a lease's memory looks like: environment spec, groups, environments of a group.
    lease_seconds
        How long an actor may be silent, as of `LeaseTable`.
    tls
        The certificate that it shows and the authority that it believes; None: streams are not encrypted.
    log_path
        File to which the child's standard error is appended; None: the caller's standard error.

    Examples
    --------
    >>> gateway = GatewayProcess(token, socket, "10.0.0.5", None, spec, groups=2, envs=16)  # doctest: +SKIP
    >>> gateway.start(timeout=30)  # doctest: +SKIP
    41873
    """

    def __init__(
        self,
        token: str,
        socket: str,
        host: str,
        ports: tuple[int, int] | None,
        spec: EnvSpec,
        *,
        groups: int,
        envs: int,
        lease_seconds: float,
        tls: Tls | None = None,
        log_path: Path | None = None,
    ) -> None:
        self._start: dict[str, Any] = {
            "token": token,
            "socket": socket,
            "host": host,
            "ports": ports,
            "spec": spec.to_json(),
            "groups": groups,
            "envs": envs,
            "lease_seconds": lease_seconds,
            "tls": None if tls is None else tls.to_json(),
        }
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._said = bytearray()
        self._heard_at = 0.0
        self._counts = GatewayCounts()

    def __enter__(self) -> GatewayProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The bound port. Raises TransportError before the first start."""
        if self._port is None:
            raise TransportError("the gateway has no port yet: start it first")
        return self._port

    @property
    def address(self) -> str:
        """``host:port`` for `Endpoint.gateway`. Raises TransportError before the first start."""
        return address(str(self._start["host"]), self.port)

    @property
    def pid(self) -> int | None:
        """Process id of the child that was started last."""
        return None if self._process is None else self._process.pid

    def start(self, timeout: float = 30.0) -> int:
        """Start the child and return the port once it is bound.

        Raises
        ------
        TransportError
            The child cannot bind, ends, or says nothing within `timeout` seconds; it is gone then.
        """
        if self._process is not None and self._process.poll() is None:
            raise TransportError(f"the gateway is already running as process {self._process.pid}")
        deadline = time.monotonic() + timeout
        # One thread for numpy: the gateway copies and does no arithmetic.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        log = None if self._log_path is None else self._log_path.open("ab")
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "seedflow.rpc.gateway"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()
        self._process = process
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            self._port = self._handshake(process.stdin, process.stdout, deadline, timeout)
        except BaseException:
            self.stop(timeout=0.0)
            raise
        os.set_blocking(process.stdout.fileno(), False)
        self._start["ports"] = (self._port, self._port)
        self._counts, self._heard_at = GatewayCounts(), time.monotonic()
        return self._port

    def _handshake(self, stdin: IO[bytes], stdout: IO[bytes], deadline: float, timeout: float) -> int:
        # A child that is gone already says why in its last line or in its log.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(self._start).encode() + b"\n")
            stdin.flush()
        line = b""
        while b"\n" not in line:
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TransportError(
                    f"the gateway did not bind a port within {timeout:g} seconds{self._see_log()}"
                )
            data = os.read(stdout.fileno(), 65536)
            if not data:
                raise TransportError(f"the gateway ended before it bound a port{self._see_log()}")
            line += data
        line, _, rest = line.partition(b"\n")
        self._said = bytearray(rest)
        answer = json.loads(line)
        if "error" in answer:
            raise TransportError(f"the gateway cannot start: {answer['error']}")
        return int(answer["port"])

    def _see_log(self) -> str:
        return "" if self._log_path is None else f"; see {self._log_path}"

    def poll(self) -> int | None:
        """The child's return code; None while it runs or before a first start."""
        return None if self._process is None else self._process.poll()

    def counts(self) -> GatewayCounts:
        """What the child has counted since its last start."""
        self._listen()
        return self._counts

    def silent_for(self) -> float:
        """Seconds since the child last said something; it does so every second."""
        self._listen()
        return time.monotonic() - self._heard_at

    def _listen(self) -> None:
        stdout = None if self._process is None else self._process.stdout
        if stdout is None or stdout.closed:
            return
        try:
            while data := os.read(stdout.fileno(), 65536):
                self._said += data
        except BlockingIOError:
            pass
        *lines, self._said = self._said.split(b"\n")
        if lines:
            self._heard_at = time.monotonic()
            self._counts = GatewayCounts.from_json(json.loads(lines[-1])["counts"])

    @property
    def returncode(self) -> int | None:
        """As `poll`, under the name that `subprocess.Popen` uses."""
        return self.poll()

    def restart(self, timeout: float = 30.0) -> int:
        """End the child if it still runs and start another on the same port. Raises as `start`."""
        self.stop(timeout=0.0)
        return self.start(timeout)

    def stop(self, timeout: float = 5.0) -> int | None:
        """End the child: close its input, wait up to `timeout` seconds, then kill it. May be called twice.

        Returns
        -------
        int or None
            The child's return code; None where none was ever started.
        """
        process = self._process
        if process is None:
            return None
        if process.stdin is not None and not process.stdin.closed:
            # A child that died before it read its start message leaves a broken pipe.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_KILL_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
        return process.returncode

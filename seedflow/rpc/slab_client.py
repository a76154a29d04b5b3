"""An actor on the learner's host: rows in shared memory, doorbells through the control socket."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import NoReturn

from seedflow.errors import ConnectionLost, RegistrationRefused, TransportError
from seedflow.rpc.connection import Connection, Exit, HeartbeatThread
from seedflow.rpc.leases import Lease, Registration
from seedflow.rpc.messages import (
    MAX_MESSAGE,
    RINGS,
    ExitOrder,
    Fault,
    FaultKind,
    Granted,
    Heartbeat,
    MalformedMessage,
    Refused,
    Register,
    Reply,
    decode,
    encode,
    receive,
)
from seedflow.rpc.peers import other_user
from seedflow.rpc.slab import Block, BlockLayout
from seedflow.rpc.spin import Spin

SEND_SECONDS = 30.0  # how long a ring waits for room in a socket buffer that is full
FAULT_SECONDS = 1.0


class SocketUnreachable(ConnectionLost):
    """Nobody listens at the control socket's path: another host, or a learner that has ended."""


class SlabConnection(Connection):
    """A `Connection` whose rows are the learner's own memory; made by `open`."""

    def __init__(self, sock: socket.socket, lease: Lease, block: Block, heartbeat_seconds: float) -> None:
        self.lease, self.block = lease, block
        self._sock = sock
        self._closed = False
        self._end: ConnectionLost | Exit | None = None
        self._buffer = bytearray(MAX_MESSAGE + 1)
        self._receive_timeout, self._spin = -1.0, Spin()
        sock.setblocking(True)  # waits are timed by the kernel (SO_RCVTIMEO): one system call each
        self._heartbeat = HeartbeatThread(self._send_heartbeat, heartbeat_seconds)

    @classmethod
    def open(
        cls,
        path: str,
        token: str,
        registration: Registration,
        layout: BlockLayout,
        timeout: float,
        heartbeat_seconds: float,
    ) -> SlabConnection:
        """Connect to the control socket at `path` and register, within `timeout` seconds.

        Raises
        ------
        SocketUnreachable, ConnectionLost, RegistrationRefused, Exit
            See `seedflow.rpc.client.connect`.
        """
        deadline = time.monotonic() + timeout
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            _connect(sock, path, timeout)
            lease, fd = _register(sock, path, Register(token, registration), deadline, timeout)
            try:
                block = Block.map(fd, layout, lease.block)
            finally:
                os.close(fd)
            return cls(sock, lease, block, heartbeat_seconds)
        except BaseException:
            sock.close()
            raise

    def ring(self, group: int) -> None:
        """See `Connection.ring`."""
        if self._end is not None:
            raise self._end
        self.block.count_request(group)
        try:
            self._sock.send(RINGS[group], socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._send_patiently(RINGS[group], SEND_SECONDS)
        except OSError as error:
            self._read_last_word(error)

    def wait(self, timeout: float) -> int | None:
        """See `Connection.wait`."""
        if self._end is not None:
            raise self._end
        size = self._received() if timeout <= 0.0 else self._spin.look(self._received)
        if size is None and timeout > 0.0:
            if timeout != self._receive_timeout:
                self._set_receive_timeout(timeout)
            size = self._received(flags=0)
        if size is None:
            return None
        try:
            return self._take(memoryview(self._buffer)[:size])
        except (ConnectionLost, Exit) as end:
            self._end = end
            raise

    def report_fault(self, text: str, kind: FaultKind = "raised") -> None:
        """See `Connection.report_fault`."""
        with contextlib.suppress(ConnectionLost, Exit):  # then the learner knows that this actor ends
            self._send_patiently(encode(Fault(text, kind)), FAULT_SECONDS)

    def close(self) -> None:
        """See `Connection.close`."""
        if self._closed:
            return
        self._closed = True
        self._heartbeat.stop()
        self.block.close()  # before the end-of-file, which tells that nobody writes any more
        self._sock.close()

    def _received(self, flags: int = socket.MSG_DONTWAIT) -> int | None:
        """Receive a message; returns its size, or None where there is none, in time if it may wait."""
        try:
            return self._sock.recv_into(self._buffer, flags=flags)
        except BlockingIOError:
            return None
        except ConnectionResetError:  # raised once, ahead of what the learner said before
            return self._sock.recv_into(self._buffer, flags=socket.MSG_DONTWAIT)

    def _take(self, data: memoryview) -> int:
        if not data:
            raise ConnectionLost("the learner closed the control socket")
        try:
            message = decode(data)
        except MalformedMessage as error:
            raise ConnectionLost(f"the learner sent a malformed message: {error}") from error
        match message:
            case Reply(group) if group < self.lease.groups:
                if self.block.replies[group] != self.block.requests[group]:
                    raise ConnectionLost(
                        f"the learner answered group {group}, which has no request in flight"
                    )
                return group
            case ExitOrder(reason, "dropped"):
                raise ConnectionLost(f"the learner dropped this lease: {reason}")
            case ExitOrder(reason, code):
                raise Exit(reason, code)
            case _:
                raise ConnectionLost(f"the learner sent {message}, which makes no sense now")

    def _send_heartbeat(self) -> bool:
        try:
            self._sock.send(encode(Heartbeat()), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True  # what it has not read yet shows that this actor lives
        except OSError:
            return False  # the next wait() reports the end of the connection
        return True

    def _send_patiently(self, data: bytes, timeout: float) -> None:
        poller = select.poll()
        poller.register(self._sock, select.POLLOUT)
        deadline = time.monotonic() + timeout
        while True:
            try:
                self._sock.send(data, socket.MSG_DONTWAIT)
                return
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0.0:
                    raise ConnectionLost(f"the learner has read nothing for {timeout:g} s") from None
                poller.poll(left * 1000.0)
            except OSError as error:
                self._read_last_word(error)

    def _read_last_word(self, error: OSError) -> NoReturn:
        """The learner hung up: raise what it said last, which tells why."""
        while self.wait(0.0) is not None:
            pass
        raise ConnectionLost(f"the learner hung up: {error.strerror}") from error

    def _set_receive_timeout(self, timeout: float) -> None:
        microseconds = max(1, round(timeout * 1e6))  # zero would wait for ever
        value = struct.pack("@ll", *divmod(microseconds, 1_000_000))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._receive_timeout = timeout


def _connect(sock: socket.socket, path: str, timeout: float) -> None:
    sock.settimeout(timeout)
    try:
        sock.connect(path)
    except TimeoutError as error:
        raise ConnectionLost(f"the learner did not accept at {path} within {timeout:g} s") from error
    except OSError as error:
        raise SocketUnreachable(f"no learner at the control socket {path}: {error}") from error
    if stranger := other_user(sock):
        raise SocketUnreachable(f"the control socket {path} is not this user's but that of {stranger}")


def _register(
    sock: socket.socket, path: str, register: Register, deadline: float, timeout: float
) -> tuple[Lease, int]:
    """Send the registration; return the lease and the slab's file descriptor."""
    sock.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        sock.send(encode(register))
        message, fd = receive(sock)
    except TimeoutError as error:
        raise ConnectionLost(
            f"the learner at {path} did not answer a registration within {timeout:g} s (rpc.connect_seconds)"
        ) from error
    except OSError as error:
        raise ConnectionLost(f"the learner at {path} hung up: {error.strerror}") from error
    match message:
        case Granted(lease) if fd is not None:
            return lease, fd
        case Refused(reason, retryable):
            raise RegistrationRefused(reason, retryable)
        case ExitOrder(reason, "dropped"):
            raise ConnectionLost(f"the learner dropped the registration: {reason}")
        case ExitOrder(reason, code):
            raise Exit(reason, code)
        case _:
            raise TransportError(f"the learner answered the registration with {message}")

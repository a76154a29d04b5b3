"""A line between an actor and its gateway that can be listened to, cut, or go dead."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

HOST = "127.0.0.1"


class Line:
    """A TCP proxy in a thread.

    Attributes
    ----------
    address
        Where to connect instead of at the gateway.
    dead
        Set, both directions swallow what is sent, and nobody is told: a half-open connection.
    heard
        All bytes that came from the actors' side.
    """

    def __init__(self, gateway: str) -> None:
        host, port = gateway.rsplit(":", 1)
        self._target = (host, int(port))
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        self.dead = threading.Event()
        self.heard = bytearray()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._actors: set[socket.socket] = set()
        self._wake, self._woken = socket.socketpair()
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="line")
        self._thread.start()

    def reset(self) -> None:
        """Break all connections at once, as a router does that has forgotten them."""
        with self._lock:
            for sock in list(self._pairs):
                # Lingering for no time turns the close into a reset.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            self._pairs.clear()

    def close(self) -> None:
        self._stopping = True
        self._wake.send(b"x")
        self._thread.join(30)
        self.reset()
        for sock in (self._server, self._wake, self._woken):
            sock.close()

    def _run(self) -> None:
        while not self._stopping:
            with self._lock:
                watched = [*self._pairs, self._server, self._woken]
                watched = [sock for sock in watched if sock.fileno() >= 0]
            try:
                ready, _, _ = select.select(watched, [], [], 0.2)
            except (OSError, ValueError):  # `reset` has closed one of them meanwhile
                continue
            with self._lock:
                for sock in ready:
                    self._serve(sock)

    def _serve(self, sock: socket.socket) -> None:
        if sock is self._server:
            actor, _ = self._server.accept()
            gateway = socket.create_connection(self._target)
            self._pairs[actor], self._pairs[gateway] = gateway, actor
            self._actors.add(actor)
        elif sock is not self._woken and sock in self._pairs:
            other = self._pairs[sock]
            try:
                data = sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if sock in self._actors:
                self.heard += data
            if self.dead.is_set():
                return
            if not data:
                for end in (sock, other):
                    self._pairs.pop(end)
                    end.close()
                return
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                other.sendall(data)


@contextlib.contextmanager
def line_to(gateway: str) -> Iterator[Line]:
    """A line to a gateway that is taken down at the end."""
    line = Line(gateway)
    try:
        yield line
    finally:
        line.close()

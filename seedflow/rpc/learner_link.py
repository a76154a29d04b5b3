"""The learner's control socket as an asyncio program sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from seedflow.errors import ConnectionLost, TransportError
from seedflow.rpc.messages import Message, encode, receive
from seedflow.rpc.peers import other_user


class LearnerLink:
    """A connection to the control socket, read by callbacks of the running event loop.

    What has arrived stays in order in one queue, and the loop's reader ends with the first failure: after
    it, `next` raises that failure forever. At most one file descriptor is held, until it is taken.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Message | TransportError] = asyncio.Queue()
        self._fd: int | None = None
        self.ended = asyncio.Event()
        """Set once the connection is over; messages that came before may still be waiting."""
        self._loop.add_reader(sock, self._drain)

    @classmethod
    async def open(cls, path: str, timeout: float) -> LearnerLink:
        """Connect to the control socket at `path`. Raises ConnectionLost."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().sock_connect(sock, path)
        except (OSError, TimeoutError) as error:
            sock.close()
            raise ConnectionLost(f"the gateway cannot reach its learner: {error}") from error
        if stranger := other_user(sock):
            sock.close()
            raise ConnectionLost(f"the gateway cannot reach its learner: {stranger} has taken its socket")
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send one encoded message. One task at a time. Raises ConnectionLost."""
        try:
            try:
                self._sock.send(data, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise ConnectionLost(f"the learner closed the control socket: {error.strerror}") from error

    async def send_message(self, message: Message) -> None:
        """Encode and send. Raises ConnectionLost, or MalformedMessage for one that is too long."""
        await self.send(encode(message))

    def send_last(self, data: bytes) -> None:
        """Send one encoded message if the learner can take it, before the connection is closed."""
        with contextlib.suppress(OSError):
            self._sock.send(data, socket.MSG_NOSIGNAL)

    async def next(self) -> Message:
        """The next message. Raises ConnectionLost or MalformedMessage once the connection is over."""
        item = await self._arrived.get()
        if isinstance(item, TransportError):
            self._arrived.put_nowait(item)
            raise item
        return item

    def take_fd(self) -> int:
        """The file descriptor that came with the last `Granted`; the caller closes it."""
        if self._fd is None:
            raise TransportError("the learner granted a lease without the slab's file descriptor")
        fd, self._fd = self._fd, None
        return fd

    def close(self) -> None:
        """Close the connection, which tells the learner that nobody writes to the block any more."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.ended.set()

    def _drain(self) -> None:
        """Take all that has arrived."""
        try:
            while True:
                message, fd = receive(self._sock)
                if fd is not None:
                    if self._fd is not None:
                        os.close(self._fd)
                    self._fd = fd
                self._arrived.put_nowait(message)
        except BlockingIOError:
            return
        except TransportError as error:
            self._end(error)
        except OSError as error:
            self._end(ConnectionLost(f"the control socket failed: {error.strerror}"))

    def _end(self, error: TransportError) -> None:
        self._loop.remove_reader(self._sock)
        self._arrived.put_nowait(error)
        self.ended.set()

"""The other end of a unix socket: whose process it is, and what a server keeps of it.

The kernel tells the user; no message has to be believed. Both ends ask before they say anything: a learner
serves nobody else's actors, and an actor shows its token to nobody who has taken the place of a learner
that ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from seedflow.rpc.leases import Lease
from seedflow.rpc.transport import GroupRang

_CREDENTIALS = struct.Struct("3i")  # process, user, group


def process_of(sock: socket.socket) -> int:
    """The process that has opened the other end; 0 where the kernel does not tell."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[0])


def is_at_work(process: int) -> bool:
    """Whether another process of this host runs or waits: it is neither stopped nor dead.

    A gateway answers for the actor behind it: it closes the connection when that one's process is silent.
    """
    if process in (0, os.getpid()):
        return False
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state in (b"R", b"S", b"D")


def other_user(sock: socket.socket) -> str | None:
    """Who owns the process at the other end, if it is not this process's user.

    Returns
    -------
    str or None
        ``user 1001``, or None where it is the same user.
    """
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return None if user == os.geteuid() else f"user {user}"


class Peer:
    """One accepted connection: pending, then the owner of a lease, then ending."""

    __slots__ = ("ending", "faults", "fd", "lease", "process", "rang", "since", "sock")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock, self.since, self.fd = sock, since, sock.fileno()
        self.process = process_of(sock)
        self.lease: Lease | None = None
        self.rang: tuple[GroupRang, ...] = ()
        self.faults = 0
        self.ending = False

    def send(self, data: bytes) -> None:
        """Send, if the peer can take it: one that has gone or does not read is found out elsewhere."""
        with contextlib.suppress(OSError):
            self.sock.send(data)

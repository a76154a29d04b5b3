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

    __slots__ = ("ending", "faults", "fd", "lease", "rang", "since", "sock")

    def __init__(self, sock: socket.socket, since: float) -> None:
        self.sock, self.since, self.fd = sock, since, sock.fileno()
        self.lease: Lease | None = None
        self.rang: tuple[GroupRang, ...] = ()
        self.faults = 0
        self.ending = False

    def send(self, data: bytes) -> None:
        """Send, if the peer can take it: one that has gone or does not read is found out elsewhere."""
        with contextlib.suppress(OSError):
            self.sock.send(data)

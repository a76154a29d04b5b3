"""Messages on the control socket: one datagram each, of a unix SOCK_SEQPACKET connection.

The doorbells, sent once a step, are two bytes: kind and group. All others are one kind byte followed by
a JSON object (`Heartbeat` and `Silent` have none). Nothing is unpickled; sizes, names and types are checked,
and whatever does not fit raises `MalformedMessage`, upon which the receiver drops that one connection.

==========  ===========  ============================================================================
message     direction    meaning
==========  ===========  ============================================================================
Register    to learner   token and registration; the first message of a connection
Granted     to actor     the lease; the slab's file descriptor travels with it (SCM_RIGHTS)
Refused     to actor     no lease; the connection is closed
Ring        to learner   a group's request half is written
Reply       to actor     a group's reply half is written
Heartbeat   to learner   the actor is alive although it does not ring
Silent      to learner   from a gateway: nothing came from the actor any more, then its connection ended
Fault       to learner   text of a failure, before the actor ends
ExitOrder   to actor     the lease is over, see its `code`
==========  ===========  ============================================================================

Examples
--------
>>> encode(Ring(3))
b'\\x01\\x03'
>>> decode(encode(Refused("the slab is full", retryable=True)))
Refused(reason='the slab is full', retryable=True)
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from seedflow.errors import ConnectionLost, TransportError
from seedflow.rpc.leases import Lease, Registration, Role

PROTOCOL_VERSION = 3
MAX_MESSAGE = 64 * 1024  # bytes
MAX_TEXT = 8_000  # characters; every one may take six bytes in JSON
MAX_NUMBER = 2**62
_FD = struct.Struct("@i")

RING, REPLY, REGISTER, GRANTED, REFUSED, HEARTBEAT, FAULT, EXIT, SILENT = range(1, 10)

RINGS = tuple(bytes((RING, group)) for group in range(256))
"""The encoded `Ring` of each group."""
REPLIES = tuple(bytes((REPLY, group)) for group in range(256))
"""The encoded `Reply` of each group."""

ExitCode = Literal["finished", "superseded", "dropped"]

FaultKind = Literal["raised", "hung", "crashed"]
"""What an environment did: it raised, it did not return in time, it ended its process."""


class MalformedMessage(TransportError):
    """A datagram that is no message of this protocol."""


@dataclass(frozen=True)
class Register:
    """Ask for a lease. `token` proves that the actor belongs to the run and is not shown in its repr."""

    token: str
    registration: Registration
    version: int = PROTOCOL_VERSION

    def __repr__(self) -> str:
        return f"Register({self.registration}, version={self.version})"


@dataclass(frozen=True)
class Granted:
    """The lease is granted."""

    lease: Lease


@dataclass(frozen=True)
class Refused:
    """The lease is refused; `retryable` tells whether the same registration may succeed later."""

    reason: str
    retryable: bool


@dataclass(frozen=True)
class Ring:
    """The request half of a group is written."""

    group: int


@dataclass(frozen=True)
class Reply:
    """The reply half of a group is written."""

    group: int


@dataclass(frozen=True)
class Heartbeat:
    """The sender is alive."""


@dataclass(frozen=True)
class Silent:
    """The actor's process is stopped or cut off, for all that its gateway can tell."""


@dataclass(frozen=True)
class Fault:
    """The actor failed, or the one before it; `text` is cut to its last `MAX_TEXT` characters when sent."""

    text: str
    kind: FaultKind = "raised"


@dataclass(frozen=True)
class ExitOrder:
    """The lease is over.

    ``finished``: the run has ended, exit with success. ``superseded``: a newer incarnation of the same
    actor has taken over, exit. ``dropped``: the learner gave up on this connection; register again.
    """

    reason: str
    code: ExitCode


Message = Register | Granted | Refused | Ring | Reply | Heartbeat | Silent | Fault | ExitOrder

_BODILESS: Mapping[int, Message] = {HEARTBEAT: Heartbeat(), SILENT: Silent()}


def encode(message: Message) -> bytes:
    """Turn a message into the bytes of its datagram."""
    match message:
        case Ring(group):
            return RINGS[group]
        case Reply(group):
            return REPLIES[group]
        case Heartbeat():
            return bytes((HEARTBEAT,))
        case Silent():
            return bytes((SILENT,))
        case Register(token, registration, version):
            return _join(
                REGISTER,
                {"version": version, "token": token, "registration": _pack_registration(registration)},
            )
        case Granted(lease):
            return _join(GRANTED, _pack_lease(lease))
        case Refused(reason, retryable):
            return _join(REFUSED, {"reason": reason[:MAX_TEXT], "retryable": retryable})
        case Fault(text, kind):
            return _join(FAULT, {"text": text[-MAX_TEXT:], "kind": kind})
        case ExitOrder(reason, code):
            return _join(EXIT, {"reason": reason[:MAX_TEXT], "code": code})


def decode(data: bytes | bytearray | memoryview) -> Message:
    """Turn a datagram into its message.

    Raises
    ------
    MalformedMessage
        If it is not one; the text says what is wrong.
    """
    if not 1 <= len(data) <= MAX_MESSAGE:
        raise MalformedMessage(f"a message of {len(data)} bytes: expected 1 to {MAX_MESSAGE}")
    kind = data[0]
    if kind in (RING, REPLY):
        if len(data) != 2:
            raise MalformedMessage(f"a doorbell of {len(data)} bytes: expected 2")
        return Ring(data[1]) if kind == RING else Reply(data[1])
    if kind in _BODILESS:
        if len(data) != 1:
            raise MalformedMessage(f"a {type(_BODILESS[kind]).__name__} of {len(data)} bytes: expected 1")
        return _BODILESS[kind]
    unpack = _UNPACK.get(kind)
    if unpack is None:
        raise MalformedMessage(f"unknown message kind {kind}")
    try:
        body = json.loads(bytes(data[1:]))
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"message kind {kind} holds no JSON: {error}") from error
    if not isinstance(body, dict):
        raise MalformedMessage(f"message kind {kind} holds {type(body).__name__}: expected a JSON object")
    return unpack(body)


def send_granted(sock: socket.socket, granted: Granted, fd: int) -> None:
    """Send a granted lease together with the slab's file descriptor."""
    socket.send_fds(sock, [encode(granted)], [fd], socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, int | None]:
    """Receive one message and, with `Granted`, the file descriptor sent along, which the caller closes.

    Raises
    ------
    ConnectionLost
        If the other side has closed the connection.
    MalformedMessage
        If the datagram is no message.
    BlockingIOError, TimeoutError
        As of the socket itself.
    """
    try:
        data, fds = _recv(sock)
    except ConnectionResetError:  # raised once, ahead of what was said before the reset
        data, fds = _recv(sock)
    try:
        if not data:
            raise ConnectionLost("the learner closed the control socket")
        message = decode(data)
        if isinstance(message, Granted) != (len(fds) == 1):
            raise MalformedMessage(f"{type(message).__name__} came with {len(fds)} file descriptors")
    except TransportError:
        for fd in fds:
            os.close(fd)
        raise
    return message, fds[0] if fds else None


def _recv(sock: socket.socket) -> tuple[bytes, list[int]]:
    # Not socket.recv_fds, which ignores its flags: the file descriptor would be inherited by children.
    room = socket.CMSG_LEN(_FD.size)
    data, control, _, _ = sock.recvmsg(MAX_MESSAGE + 1, room, socket.MSG_CMSG_CLOEXEC)
    fds = [
        fd
        for level, kind, payload in control
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS) and len(payload) >= _FD.size
        for (fd,) in _FD.iter_unpack(payload)
    ]
    return data, fds


def _join(kind: int, body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)
    # A lone surrogate becomes \udcxx, which is a valid escape inside a JSON string.
    data = bytes((kind,)) + text.encode("utf-8", "backslashreplace")
    if len(data) > MAX_MESSAGE:
        raise MalformedMessage(f"message kind {kind} would have {len(data)} bytes: at most {MAX_MESSAGE}")
    return data


_T = TypeVar("_T")


def _field(body: Mapping[str, Any], name: str, expected: type[_T]) -> _T:
    value = body.get(name)
    if type(value) is not expected:
        raise MalformedMessage(f"{name} is {type(value).__name__}: expected {expected.__name__}")
    return value


def _number(body: Mapping[str, Any], name: str) -> int:
    value = _field(body, name, int)
    if not 0 <= value <= MAX_NUMBER:
        raise MalformedMessage(f"{name} = {value}: expected 0 to {MAX_NUMBER}")
    return value


def _text(body: Mapping[str, Any], name: str) -> str:
    value = _field(body, name, str)
    if len(value) > MAX_TEXT:
        raise MalformedMessage(f"{name} has {len(value)} characters: at most {MAX_TEXT}")
    return value


def _choice(body: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str:
    value = _text(body, name)
    if value not in allowed:
        raise MalformedMessage(f"{name} = {value[:64]!r}: expected one of {', '.join(allowed)}")
    return value


def _role(body: Mapping[str, Any]) -> Role:
    return cast(Role, _choice(body, "role", get_args(Role)))


def _pack_registration(registration: Registration) -> dict[str, Any]:
    return {
        "role": registration.role,
        "index": registration.index,
        "generation": registration.generation,
        "fingerprint": registration.fingerprint,
        "groups": registration.groups,
        "envs": registration.envs,
    }


def _pack_lease(lease: Lease) -> dict[str, Any]:
    return {
        "id": lease.id,
        "block": lease.block,
        "role": lease.role,
        "index": lease.index,
        "generation": lease.generation,
        "env_ids": [lease.env_ids.start, lease.env_ids.stop],
        "groups": lease.groups,
        "envs": lease.envs,
    }


def _unpack_register(body: Mapping[str, Any]) -> Register:
    inner = _field(body, "registration", dict)
    registration = Registration(
        role=_role(inner),
        index=_number(inner, "index"),
        generation=_number(inner, "generation"),
        fingerprint=_text(inner, "fingerprint"),
        groups=_number(inner, "groups"),
        envs=_number(inner, "envs"),
    )
    return Register(_text(body, "token"), registration, _number(body, "version"))


def _unpack_granted(body: Mapping[str, Any]) -> Granted:
    ends = _field(body, "env_ids", list)
    if len(ends) != 2 or not all(type(end) is int and 0 <= end <= MAX_NUMBER for end in ends):
        raise MalformedMessage(f"env_ids = {ends}: expected [start, stop]")
    return Granted(
        Lease(
            id=_number(body, "id"),
            block=_number(body, "block"),
            role=_role(body),
            index=_number(body, "index"),
            generation=_number(body, "generation"),
            env_ids=range(ends[0], ends[1]),
            groups=_number(body, "groups"),
            envs=_number(body, "envs"),
        )
    )


def _unpack_exit(body: Mapping[str, Any]) -> ExitOrder:
    code = cast(ExitCode, _choice(body, "code", get_args(ExitCode)))
    return ExitOrder(_text(body, "reason"), code)


def _unpack_fault(body: Mapping[str, Any]) -> Fault:
    text = _text(body, "text")
    return Fault(text, cast(FaultKind, _choice(body, "kind", get_args(FaultKind))))


_UNPACK: Mapping[int, Callable[[Mapping[str, Any]], Message]] = {
    REGISTER: _unpack_register,
    GRANTED: _unpack_granted,
    REFUSED: lambda body: Refused(_text(body, "reason"), _field(body, "retryable", bool)),
    FAULT: _unpack_fault,
    EXIT: _unpack_exit,
}

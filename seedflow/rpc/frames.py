"""Steps and actions on the wire, without the copies that protobuf makes of them.

Nearly all bytes of a stream are payloads: the packed rows of one group. Building such a message through the
generated classes copies the payload three times on either side; here it is joined into its bytes once and
read where it lies. The bytes are those of ``ActorMessage(step=Step(...))`` and
``LearnerMessage(actions=Actions(...))`` in `seedflow.proto`. A message of another form, or one that was
encoded differently, goes the usual way.

See https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from seedflow.rpc.seedflow_pb2 import ActorMessage, LearnerMessage

SERVICE = "seedflow.rpc.Gateway"
STEP, ACTIONS = 0x12, 0x1A  # field 2 of ActorMessage, field 3 of LearnerMessage; both length-delimited
_GROUP, _PAYLOAD = 0x08, 0x12  # field 1, a varint; field 2, length-delimited
_LONGEST_VARINT = 5  # bytes: sizes below 2**35


class Frame(NamedTuple):
    """A step's or an answer's group and payload."""

    group: int
    payload: memoryview


def header(kind: int, group: int, nbytes: int) -> bytes:
    """What stands before a payload of `nbytes` in the message of a `kind`, `STEP` or `ACTIONS`."""
    inner = (bytes((_GROUP,)) + _varint(group) if group else b"") + bytes((_PAYLOAD,)) + _varint(nbytes)
    return bytes((kind,)) + _varint(len(inner) + nbytes) + inner


def join(head: bytes, parts: Iterable[memoryview]) -> bytes:
    """The bytes of a message: `header`, then the parts of its payload."""
    return b"".join((head, *parts))


def serialize(message: Any) -> bytes:
    """Serialize for gRPC: bytes are a message already."""
    if isinstance(message, bytes):
        return message
    data: bytes = message.SerializeToString()
    return data


def parse_actor_message(data: bytes) -> ActorMessage | Frame:
    """What an actor sent. Raises DecodeError for what is no message."""
    frame = parse(STEP, data)
    return ActorMessage.FromString(data) if frame is None else frame


def parse_learner_message(data: bytes) -> LearnerMessage | Frame:
    """What a gateway sent. Raises DecodeError for what is no message."""
    frame = parse(ACTIONS, data)
    return LearnerMessage.FromString(data) if frame is None else frame


def parse(kind: int, data: bytes) -> Frame | None:
    """Read a message that `join` made, or None for any other."""
    if not data or data[0] != kind:
        return None
    size, at = _read_varint(data, 1)
    if size != len(data) - at:
        return None
    group = 0
    if at < len(data) and data[at] == _GROUP:
        group, at = _read_varint(data, at + 1)
    if group < 0 or at >= len(data) or data[at] != _PAYLOAD:
        return None
    nbytes, at = _read_varint(data, at + 1)
    if nbytes != len(data) - at:
        return None
    return Frame(group, memoryview(data)[at:])


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where the next byte is; -1 for a number that is cut off or too long."""
    value = 0
    for i, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * i
        if byte <= 0x7F:
            return value, at + i + 1
    return -1, at

"""The lines between a supervisor and its role, and the exit codes of a role."""

from __future__ import annotations

import json
import traceback
from typing import Any

from seedflow.errors import TransportError

Message = dict[str, Any]

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_HOPELESS = 3
"""A restart cannot cure what went wrong."""

FINISHED, STOPPED = "finished", "stopped"
"""Reasons of a ``done`` message: the run is complete; the role was asked to stop."""

MAX_LINE = 1 << 20
"""Bytes of one message."""
BOARD_SIZE = 64
"""Bytes of the memory that a role shares with its supervisor."""
MAX_START_LINE = 64 << 20
"""Bytes of the start message, which may carry a pickled environment."""


def encode(message: Message, limit: int = MAX_LINE) -> bytes:
    """One message as a line; a `TransportError` if it is longer than `limit` bytes."""
    line = json.dumps(message, allow_nan=True, separators=(",", ":")).encode() + b"\n"
    if len(line) > limit:
        raise TransportError(
            f"a {message.get('kind')!r} message has {len(line)} bytes: at most {limit} can be sent"
        )
    return line


def decode(line: bytes, sender: str) -> Message:
    """The message of one line; a `TransportError` that shows the line if it is none."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise TransportError(f"{sender} sent {line[:200]!r}: expected one JSON object a line") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise TransportError(f'{sender} sent {line[:200]!r}: expected a JSON object with a "kind"')
    return message


def failure(error: BaseException, retryable: bool) -> Message:
    """The ``failed`` message for an exception: its type, text and traceback, and by what to know it again."""
    text = "".join(traceback.format_exception(error))
    identity = getattr(error, "identity", None)
    return {
        "kind": "failed",
        "retryable": retryable,
        "exception": type(error).__name__,
        "message": str(error)[:4096],
        "identity": str(error if identity is None else identity)[:4096],
        "traceback": text[-32768:],
    }

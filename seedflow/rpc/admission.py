"""What a registration has to prove before the lease table decides on it."""

from __future__ import annotations

import hmac

from seedflow.rpc.decisions import Refusal
from seedflow.rpc.messages import PROTOCOL_VERSION, Register


def objection(message: Register, token: bytes) -> tuple[Refusal, str] | None:
    """Why a registration is refused whatever the table says; None if it may go on.

    Parameters
    ----------
    message
        As it came.
    token
        The run token; compared in constant time.

    Examples
    --------
    >>> from seedflow.rpc.leases import Registration
    >>> actor = Registration("train", 0, 0, "f", 1, 4)
    >>> objection(Register("wrong", actor), b"right")
    ('token', 'the run token does not match: this actor belongs to another run')
    >>> objection(Register("right", actor), b"right") is None
    True
    """
    if message.version != PROTOCOL_VERSION:
        return "version", (
            f"the actor speaks protocol version {message.version}, the learner {PROTOCOL_VERSION}: "
            "install the same seedflow release on both"
        )
    if not hmac.compare_digest(message.token.encode("utf-8", "surrogatepass"), token):
        return "token", "the run token does not match: this actor belongs to another run"
    return None

"""One remote actor within the gateway: from its gRPC stream to its block of the slab and back."""

from __future__ import annotations

import asyncio
import hmac
import os
from typing import Any, cast, get_args

from google.protobuf.message import DecodeError

from seedflow.errors import ConfigError, ConnectionLost, TransportError
from seedflow.rpc.frames import ACTIONS, Frame, header, join
from seedflow.rpc.gateway_counts import GatewayCounts
from seedflow.rpc.grpc_options import aio, check_payloads, grpc, longest_silence
from seedflow.rpc.learner_link import LearnerLink
from seedflow.rpc.leases import Lease, Registration, Role
from seedflow.rpc.messages import (
    RINGS,
    ExitOrder,
    Fault,
    FaultKind,
    Granted,
    Heartbeat,
    Refused,
    Register,
    Reply,
    Silent,
    encode,
)
from seedflow.rpc.seedflow_pb2 import ActorMessage, Exit, LearnerMessage
from seedflow.rpc.seedflow_pb2 import Granted as WireGranted
from seedflow.rpc.seedflow_pb2 import Refused as WireRefused
from seedflow.rpc.slab import Block, BlockLayout

REGISTER_SECONDS = 30.0
"""How long an actor may take to register, and then the learner to answer."""

MAX_PENDING = 256
"""Streams that have not registered yet, at most: they need no token to be there."""

FLUSH_SECONDS = 5.0
"""How long an actor may take to accept the learner's last words, once the learner has hung up."""

MAX_FINGERPRINT = 128
"""Characters of an environment spec's fingerprint."""

_HEARTBEAT, _SILENT = encode(Heartbeat()), encode(Silent())


class StreamRefused(Exception):
    """Ends one stream with a gRPC status.

    Parameters
    ----------
    status
        A `grpc.StatusCode`.
    text
        What the actor is told.
    """

    def __init__(self, status: Any, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class StreamCut(Exception):
    """The stream is at its end although the actor did not take its leave."""


def _malformed(text: str) -> StreamRefused:
    return StreamRefused(grpc.StatusCode.INVALID_ARGUMENT, text)


class Relay:
    """Does for a remote actor what a local one does for itself.

    A group's rows are written only while the lease lasts and the group is not in flight, and the block is
    let go before the control socket closes: when the learner sees the end of the connection, nobody
    writes to the block any more. Whatever an actor sends wrongly ends its own stream with a status.

    Parameters
    ----------
    context
        The stream's `grpc.aio.ServicerContext`.
    token
        The run token that the actor must name.
    socket
        Path of the learner's control socket.
    layout
        Memory of a lease.
    lease_seconds
        As of `LeaseTable`.
    counts
        Where to count how the stream ends.
    """

    def __init__(
        self,
        context: Any,
        token: str,
        socket: str,
        layout: BlockLayout,
        lease_seconds: float,
        counts: GatewayCounts,
    ) -> None:
        self._context, self._counts = context, counts
        self._token = token
        self._socket = socket
        self._layout = layout
        self._clock = asyncio.get_running_loop().time
        self._longest_silence, self._heard_at = longest_silence(lease_seconds), self._clock()
        self._in_flight = [False] * layout.groups
        self._headers = [header(ACTIONS, group, layout.reply_bytes) for group in range(layout.groups)]

    async def run(self) -> None:
        """Serve the stream until either side ends it."""
        self._counts.streams += 1
        try:
            await self._relay()
        except StreamRefused as refused:
            self._count(refused.status)
            await self._context.abort(refused.status, refused.text)
        except ConnectionLost as error:
            await self._context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except TransportError as error:
            await self._context.abort(grpc.StatusCode.INTERNAL, f"gateway and learner disagree: {error}")
        except StreamCut:
            self._counts.broken += 1
        except asyncio.CancelledError:  # by gRPC: the connection is gone
            self._counts.broken += 1
            raise
        finally:
            self._counts.streams -= 1

    async def _relay(self) -> None:
        if self._counts.pending >= MAX_PENDING:
            raise StreamRefused(grpc.StatusCode.UNAVAILABLE, f"{MAX_PENDING} others are registering")
        self._counts.pending += 1
        try:
            register = await self._registration()
        finally:
            self._counts.pending -= 1
        if register is None:
            return
        link = await LearnerLink.open(self._socket, REGISTER_SECONDS)
        try:
            await self._serve(link, register)
        except (StreamCut, asyncio.CancelledError):
            # gRPC does not say why a connection is gone. One that was silent before, for longer than an
            # actor's heart pauses, was ended for want of an answer: the actor is stopped, or cut off.
            if self._clock() - self._heard_at > self._longest_silence / 2:
                link.send_last(_SILENT)
            raise
        finally:
            link.close()

    def _count(self, status: Any) -> None:
        match status:
            case grpc.StatusCode.UNAUTHENTICATED:
                self._counts.refused_token += 1
            case grpc.StatusCode.INVALID_ARGUMENT:
                self._counts.malformed += 1
            case grpc.StatusCode.DEADLINE_EXCEEDED | grpc.StatusCode.UNAVAILABLE:
                self._counts.unregistered += 1

    async def _registration(self) -> Register | None:
        """The first message; None where the stream ended before it."""
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                message = await self._read()
        except TimeoutError:
            raise StreamRefused(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no registration came within {REGISTER_SECONDS:g} seconds"
            ) from None
        if message is None:
            return None
        if isinstance(message, Frame) or message.WhichOneof("kind") != "register":
            raise _malformed("the first message of a stream must be its registration")
        wire = message.register
        if not hmac.compare_digest(wire.token.encode(), self._token.encode()):
            raise StreamRefused(
                grpc.StatusCode.UNAUTHENTICATED,
                "the token is not that of this run; it may belong to another run",
            )
        if wire.role not in get_args(Role):
            raise _malformed(f"role = {wire.role[:64]!r}: expected one of {', '.join(get_args(Role))}")
        if len(wire.fingerprint) > MAX_FINGERPRINT:
            raise _malformed(f"fingerprint has {len(wire.fingerprint)} characters: at most {MAX_FINGERPRINT}")
        try:
            check_payloads(self._layout)
        except ConfigError as error:
            raise StreamRefused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        registration = Registration(
            role=cast(Role, wire.role),
            index=wire.index,
            generation=wire.generation,
            fingerprint=wire.fingerprint,
            groups=wire.groups,
            envs=wire.envs,
        )
        return Register(wire.token, registration, wire.version)

    async def _serve(self, link: LearnerLink, register: Register) -> None:
        lease = await self._lease(link, register)
        if lease is None:
            return
        fd = link.take_fd()
        try:
            block = Block.map(fd, self._layout, lease.block)
        finally:
            os.close(fd)
        requests = asyncio.create_task(self._requests(link, lease, block))
        replies = asyncio.create_task(self._replies(link, block))
        ended = asyncio.create_task(link.ended.wait())
        try:
            await asyncio.wait({requests, replies, ended}, return_when=asyncio.FIRST_COMPLETED)
            hung_up = requests.done() and isinstance(requests.exception(), ConnectionLost)
            if hung_up or link.ended.is_set():
                await asyncio.wait({replies}, timeout=FLUSH_SECONDS)
        finally:
            for task in (requests, replies, ended):
                task.cancel()
            outcomes = await asyncio.gather(requests, replies, return_exceptions=True)
            block.close()
        # What the actor did wrong comes first; then what the learner said last; then that it hung up.
        request_end, reply_end = outcomes
        if isinstance(request_end, StreamRefused):
            raise request_end
        for outcome in (reply_end, request_end):
            if outcome is None:
                return
            if not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        raise ConnectionLost("the learner closed the connection while its actor took no messages")

    async def _lease(self, link: LearnerLink, register: Register) -> Lease | None:
        """Ask the learner for a lease and tell the actor the answer; None if there is no lease."""
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                await link.send_message(register)
                answer = await link.next()
        except TimeoutError:
            raise ConnectionLost(f"the learner did not answer within {REGISTER_SECONDS:g} seconds") from None
        match answer:
            case Granted(lease):
                granted = WireGranted(
                    lease_id=lease.id,
                    block=lease.block,
                    env_start=lease.env_ids.start,
                    env_stop=lease.env_ids.stop,
                    groups=lease.groups,
                    envs=lease.envs,
                )
                await self._write(LearnerMessage(granted=granted))
                return lease
            case Refused(reason, retryable):
                await self._write(LearnerMessage(refused=WireRefused(reason=reason, retryable=retryable)))
            case ExitOrder(reason, code):
                await self._write(LearnerMessage(exit=Exit(reason=reason, code=code)))
            case _:
                raise TransportError(f"the learner answered a registration with {answer}")
        return None

    async def _requests(self, link: LearnerLink, lease: Lease, block: Block) -> None:
        """From the actor to the learner, until the actor leaves."""
        while True:
            message = await self._read()
            if message is None:
                raise StreamCut
            if isinstance(message, Frame):
                self._take_step(message.group, message.payload, lease, block)
                await link.send(RINGS[message.group])
                continue
            match message.WhichOneof("kind"):
                case "step":
                    self._take_step(message.step.group, message.step.payload, lease, block)
                    await link.send(RINGS[message.step.group])
                case "heartbeat":
                    await link.send(_HEARTBEAT)
                case "fault":
                    if message.fault.kind not in get_args(FaultKind):
                        raise _malformed(f"fault of kind {message.fault.kind[:64]!r}")
                    await link.send_message(Fault(message.fault.text, cast(FaultKind, message.fault.kind)))
                case "leave":
                    return
                case kind:
                    raise _malformed(
                        f"expected step, heartbeat, fault or leave, got {kind or 'an empty message'}"
                    )

    def _take_step(self, group: int, payload: bytes | memoryview, lease: Lease, block: Block) -> None:
        if group >= lease.groups:
            raise _malformed(f"step names group {group}: expected 0 to {lease.groups - 1}")
        if self._in_flight[group]:
            raise _malformed(f"group {group} sent a second step before the actions of its first had come")
        try:
            block.unpack_request(group, payload)
        except TransportError as error:
            raise _malformed(f"step of group {group}: {error}") from error
        self._in_flight[group] = True
        block.count_request(group)

    async def _replies(self, link: LearnerLink, block: Block) -> None:
        """From the learner to the actor, until the learner ends the lease."""
        while True:
            match await link.next():
                case Reply(group) if group < len(self._in_flight) and self._in_flight[group]:
                    actions = join(self._headers[group], block.reply_parts(group))
                    # The rows are the actor's again before it can know: its next step may come at once.
                    self._in_flight[group] = False
                    await self._write(actions)
                case ExitOrder(reason, code):
                    await self._write(LearnerMessage(exit=Exit(reason=reason, code=code)))
                    return
                case unexpected:
                    raise TransportError(f"the learner sent {unexpected}, which answers nothing")

    async def _read(self) -> ActorMessage | Frame | None:
        """The actor's next message, or None at the end of the stream."""
        try:
            message = await self._context.read()
        except DecodeError as error:
            raise _malformed(f"not a message of seedflow.proto: {error}") from error
        if message is not aio.EOF:
            self._heard_at = self._clock()
        return None if message is aio.EOF else message

    async def _write(self, message: LearnerMessage | bytes) -> None:
        await self._context.write(message)

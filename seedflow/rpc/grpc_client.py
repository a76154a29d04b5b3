"""The actor's connection over gRPC: a private block whose halves travel as messages."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

from seedflow.errors import ConfigError, ConnectionLost, RegistrationRefused, TransportError
from seedflow.rpc.connection import Connection, Exit, HeartbeatThread
from seedflow.rpc.frames import SERVICE, STEP, Frame, header, join, parse_learner_message, serialize
from seedflow.rpc.grpc_options import check_payloads, client_options, grpc
from seedflow.rpc.leases import Lease, Registration
from seedflow.rpc.messages import MAX_TEXT, PROTOCOL_VERSION, FaultKind
from seedflow.rpc.seedflow_pb2 import ActorMessage, Fault, Granted, Heartbeat, LearnerMessage, Leave, Register
from seedflow.rpc.seedflow_pb2 import Exit as WireExit
from seedflow.rpc.slab import Block, BlockLayout
from seedflow.rpc.tls import Tls

GOODBYE_SECONDS = 1.0
"""Longest wait for what was written last to leave, and for the gateway to answer the stream's end."""

JOIN_SECONDS = 5.0
"""Longest wait for the reader thread once the stream is cancelled."""

log = logging.getLogger(__name__)

# Answers that the same registration would get again.
_REFUSALS = ("UNAUTHENTICATED", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED")


class GatewayStream:
    """One bidirectional stream to a gateway, with a thread that reads it.

    What the gateway sends stays in order in one queue, whose last item is the failure that ended the
    stream; `next` raises it again and again.

    Parameters
    ----------
    gateway
        ``host:port``.
    first
        The message that opens the stream.
    connect_seconds
        Longest wait for the connection below the stream.
    tls
        This end's certificate and the name of the other's; None: nothing is encrypted.
    """

    def __init__(
        self, gateway: str, first: ActorMessage, connect_seconds: float, tls: Tls | None = None
    ) -> None:
        self.gateway = gateway
        self.failure: TransportError | None = None
        self._outgoing: queue.SimpleQueue[ActorMessage | bytes | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[LearnerMessage | Frame | None] = queue.SimpleQueue()
        self._fault_left = threading.Event()
        self._outgoing.put(first)
        options = client_options(connect_seconds)
        if tls is None:
            self._channel = grpc.insecure_channel(gateway, options=options)
        else:
            named = [*options, ("grpc.ssl_target_name_override", tls.name)]
            self._channel = grpc.secure_channel(gateway, tls.channel_credentials(), options=named)
        steps = self._channel.stream_stream(f"/{SERVICE}/Steps", serialize, parse_learner_message)
        self._call: Any = steps(self._messages())
        self._reader = threading.Thread(target=self._read, name="seedflow-stream-reader", daemon=True)
        self._reader.start()

    def send(self, message: ActorMessage | bytes) -> None:
        """Queue a message, which may be serialized already; once the stream has ended it goes nowhere."""
        self._outgoing.put(message)

    def send_fault(self, message: ActorMessage) -> None:
        """Queue a fault and wait until it has left, `GOODBYE_SECONDS` at most."""
        self._outgoing.put(message)
        self._fault_left.wait(GOODBYE_SECONDS)

    def next(self, timeout: float) -> LearnerMessage | Frame | None:
        """The next message, or None after `timeout` seconds.

        Raises
        ------
        ConnectionLost, RegistrationRefused
            If the stream has ended.
        """
        try:
            message = self._incoming.get(timeout=max(0.0, timeout))
        except queue.Empty:
            return None
        if message is None:
            self._incoming.put(None)
            assert self.failure is not None, "the reader ends with a failure"
            raise self.failure
        return message

    def close(self) -> None:
        """End the stream, the thread and the channel."""
        self._outgoing.put(ActorMessage(leave=Leave()))
        self._outgoing.put(None)
        self._reader.join(GOODBYE_SECONDS)
        self._call.cancel()
        self._reader.join(JOIN_SECONDS)
        if self._reader.is_alive():
            log.warning("the thread that reads from %s did not end in %g s", self.gateway, JOIN_SECONDS)
        self._channel.close()

    def _messages(self) -> Iterator[ActorMessage | bytes]:
        """What gRPC's own thread sends; it asks for the next message when the last one has left."""
        while (message := self._outgoing.get()) is not None:
            yield message
            if not isinstance(message, bytes) and message.HasField("fault"):
                self._fault_left.set()

    def _read(self) -> None:
        try:
            for message in self._call:
                self._incoming.put(message)
            self.failure = ConnectionLost(f"the gateway at {self.gateway} ended the stream")
        except grpc.RpcError as error:
            self.failure = self._translate(error)
        except Exception as error:
            self.failure = ConnectionLost(f"reading from the gateway at {self.gateway} failed: {error!r}")
            self.failure.__cause__ = error
        finally:
            self._incoming.put(None)

    def _translate(self, error: Any) -> TransportError:
        status, text = error.code().name, error.details()
        if status in _REFUSALS:
            return RegistrationRefused(f"the gateway at {self.gateway} refused this actor: {text} ({status})")
        return ConnectionLost(f"the connection to the gateway at {self.gateway} ended: {text} ({status})")


class GrpcConnection(Connection):
    """A `Connection` whose rows are a private copy; made by `open`."""

    def __init__(
        self, stream: GatewayStream, lease: Lease, layout: BlockLayout, heartbeat_seconds: float
    ) -> None:
        self.lease = lease
        self.block = Block.private(layout)
        self._headers = [header(STEP, group, layout.request_bytes) for group in range(layout.groups)]
        self._stream = stream
        self._end: Exception | None = None
        self._closed = False
        self._heartbeat = HeartbeatThread(self._beat, heartbeat_seconds)

    @classmethod
    def open(
        cls,
        gateway: str,
        token: str,
        registration: Registration,
        layout: BlockLayout,
        connect_seconds: float,
        heartbeat_seconds: float,
        tls: Tls | None = None,
    ) -> GrpcConnection:
        """Connect to the gateway at ``host:port`` and register: one attempt.

        Raises
        ------
        RegistrationRefused
            If gateway or learner said no.
        ConnectionLost
            If nobody listens there, or no answer came within `connect_seconds`.
        Exit
            If the run has ended.
        """
        try:
            check_payloads(layout)
        except ConfigError as error:
            raise RegistrationRefused(str(error)) from error
        register = Register(
            version=PROTOCOL_VERSION,
            token=token,
            role=registration.role,
            index=registration.index,
            generation=registration.generation,
            fingerprint=registration.fingerprint,
            groups=registration.groups,
            envs=registration.envs,
        )
        stream = GatewayStream(gateway, ActorMessage(register=register), connect_seconds, tls)
        try:
            answer = stream.next(connect_seconds)
            if answer is None:
                raise ConnectionLost(
                    f"no answer from the gateway at {gateway} within {connect_seconds:g} seconds"
                )
            if isinstance(answer, Frame):
                raise ConnectionLost(f"the gateway at {gateway} answered a registration with actions")
            match answer.WhichOneof("kind"):
                case "granted":
                    lease = _lease(answer.granted, registration)
                    connection = cls(stream, lease, layout, heartbeat_seconds)
                    connection.encrypted = tls is not None
                    return connection
                case "refused":
                    raise RegistrationRefused(answer.refused.reason, answer.refused.retryable)
                case "exit":
                    raise _ending(answer.exit)
                case kind:
                    raise ConnectionLost(f"the gateway at {gateway} answered a registration with {kind}")
        except BaseException:
            stream.close()
            raise

    def ring(self, group: int) -> None:
        if self._stream.failure is not None:
            # What the learner said last tells more than that the stream is over.
            while self._end is None:
                self._next(0.0)
        if self._end is not None:
            raise self._end
        self._stream.send(join(self._headers[group], self.block.request_parts(group)))

    def wait(self, timeout: float) -> int | None:
        group = None if self._end is not None else self._next(timeout)
        if self._end is not None:
            raise self._end
        return group

    def _next(self, timeout: float) -> int | None:
        """Take the next message: a group whose actions it brought, or None; the last one sets `_end`."""
        try:
            message = self._stream.next(timeout)
            if message is None:
                return None
            if isinstance(message, Frame):
                if message.group < self.lease.groups:
                    self.block.unpack_reply(message.group, message.payload)
                    return message.group
                self._end = ConnectionLost(f"the gateway at {self._stream.gateway} sent an unknown group")
                return None
            match message.WhichOneof("kind"):
                case "actions" if message.actions.group < self.lease.groups:
                    self.block.unpack_reply(message.actions.group, message.actions.payload)
                    return int(message.actions.group)
                case "exit":
                    self._end = _ending(message.exit)
                case kind:
                    self._end = ConnectionLost(
                        f"the gateway at {self._stream.gateway} sent {kind} out of turn"
                    )
        except ConnectionLost as error:
            self._end = error
        except TransportError as error:
            # A status that refuses an actor at its registration ends a lease later on.
            self._end = ConnectionLost(str(error))
            self._end.__cause__ = error
        return None

    def report_fault(self, text: str, kind: FaultKind = "raised") -> None:
        if self._stream.failure is None and not self._closed:
            self._stream.send_fault(ActorMessage(fault=Fault(text=text[-MAX_TEXT:], kind=kind)))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._heartbeat.stop()
        self._stream.close()
        self.block.close()

    def _beat(self) -> bool:
        if self._stream.failure is not None:
            return False
        self._stream.send(ActorMessage(heartbeat=Heartbeat()))
        return True


def _lease(granted: Granted, registration: Registration) -> Lease:
    return Lease(
        id=granted.lease_id,
        block=granted.block,
        role=registration.role,
        index=registration.index,
        generation=registration.generation,
        env_ids=range(granted.env_start, granted.env_stop),
        groups=granted.groups,
        envs=granted.envs,
    )


def _ending(order: WireExit) -> Exception:
    match order.code:
        case "finished":
            return Exit(order.reason, "finished")
        case "superseded":
            return Exit(order.reason, "superseded")
    return ConnectionLost(f"the learner ended the lease: {order.reason}")

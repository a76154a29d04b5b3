"""The control server: the learner's end of all unix sockets, driven by the inference loop.

A connection registers with its first message, then rings doorbells and gets them back. One epoll wake-up
takes the messages of all connections that have some; nothing here ever waits for a peer: one that does not
read is dropped.

When a lease is dropped its socket is only shut down for writing and kept until the actor has gone: the
end-of-file tells that nobody writes into its block any more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from seedflow.rpc.admission import objection
from seedflow.rpc.leases import DroppedLease, Ending, Lease, LeaseCounts, LeaseTable, RefusedLease
from seedflow.rpc.listener import Listener
from seedflow.rpc.messages import (
    MAX_MESSAGE,
    REPLIES,
    RING,
    ExitCode,
    ExitOrder,
    Fault,
    Granted,
    Heartbeat,
    MalformedMessage,
    Refused,
    Register,
    Ring,
    Silent,
    decode,
    encode,
    send_granted,
)
from seedflow.rpc.peers import Peer, is_at_work
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.spin import Spin
from seedflow.rpc.transport import (
    Event,
    FaultReported,
    GroupRang,
    LeaseClosed,
    LeaseOpened,
    admit_ring,
)

log = logging.getLogger(__name__)

REGISTER_SECONDS = 5.0  # a connection that has not registered by then is closed
MAX_PENDING = 1024  # connections that have not registered yet
MAX_FAULTS = 8  # of one lease: each is logged and shown to people
TICK_SECONDS = 1.0
PAUSE_SECONDS = 5.0  # a tick that is late by more says that this very process was stopped
PASSES = 4  # one message of each connection a pass; bounds what peers without news can take of a poll
ACCEPTS = 64  # a pass
GONE = select.EPOLLHUP | select.EPOLLERR


class ControlServer:
    """Leases, doorbells and faults of all actors, over unix sockets. A `LearnerTransport`.

    Parameters
    ----------
    layout, slab, table
        Layout and memory of the blocks, and the table that decides on leases; the slab stays the caller's.
    token
        The run token, which every registration has to prove.
    directory
        Where to make the socket's directory. By default the user's runtime directory or the one for
        temporary files.
    clock
        Seconds of a monotonic clock.

    Attributes
    ----------
    path : Path
        The control socket.
    wake_fd : int
        The eventfd behind `wake`, for another process to write to.

    Raises
    ------
    TransportError
        If there is no directory for the socket.
    """

    def __init__(
        self,
        layout: BlockLayout,
        slab: Slab,
        table: LeaseTable,
        token: str,
        directory: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if slab.blocks < table.blocks or slab.layout != layout:
            raise ValueError(
                f"the slab ({slab.blocks} blocks) does not fit the table ({table.blocks} blocks)"
            )
        self.slab, self.table = slab, table
        self._token, self._clock = token.encode(), clock
        self._listener = Listener(directory)
        self.path = self._listener.path
        self._peers: dict[int, Peer] = {}
        self._pending: dict[int, Peer] = {}
        self._owners: dict[int, Peer] = {}  # by lease id
        self._events: list[Event] = []
        self._buffer = bytearray(MAX_MESSAGE + 1)
        self._finished: str | None = None
        self._strays = 0
        self._next_tick = clock() + TICK_SECONDS
        self._wake_lock = threading.Lock()
        self._closed = False
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll, self._spin = select.epoll(), Spin()
        self._listening = True
        self._epoll.register(self.wake_fd, select.EPOLLIN)
        self._epoll.register(self._listener, select.EPOLLIN)

    def poll(self, timeout: float) -> list[Event]:
        """See `LearnerTransport.poll`."""
        if self._events:
            timeout = 0.0
        elif timeout > 0.0:
            timeout = max(0.0, min(timeout, self._next_tick - self._clock()))
        for _ in range(PASSES):
            ready = self._spin.look(self._ready) if timeout > 0.0 else None
            if ready is None:
                ready = self._epoll.poll(timeout, len(self._peers) + 2)
            if not ready:
                break
            timeout = 0.0
            self._pass(ready)
            if self._events:  # what else there is can wait for the next call
                break
        now = self._clock()
        if now >= self._next_tick:
            self._tick(now)
        events, self._events = self._events, []
        return events

    def reply(self, lease_id: int, group: int) -> None:
        """See `LearnerTransport.reply`."""
        if not self.table.reply(lease_id, group, self._clock()):
            return
        peer = self._owners[lease_id]
        lease = peer.rang[group].lease
        self.slab.count_reply(lease.block, group)
        try:
            peer.sock.send(REPLIES[group])
        except BlockingIOError:
            self._drop(peer, "the actor does not read its replies: its socket buffer is full", "unread")
        except (BrokenPipeError, ConnectionResetError):
            return  # the next poll finds the end of the connection, and before it what the actor said last

    def hold(self, lease_ids: Iterable[int]) -> None:
        """See `LearnerTransport.hold`."""
        self.table.hold(lease_ids)

    def release(self, lease_ids: Iterable[int]) -> None:
        """See `LearnerTransport.release`."""
        self.table.release(lease_ids)

    def tell_exit(self, reason: str) -> None:
        """See `LearnerTransport.tell_exit`."""
        self._finished = reason
        for lease in self.table.active():
            self._owners[lease.id].send(encode(ExitOrder(reason, "finished")))

    def wake(self) -> None:
        """See `LearnerTransport.wake`."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self.wake_fd, 1)

    def counts(self) -> LeaseCounts:
        """See `LearnerTransport.counts`."""
        return self.table.counts()

    def metrics(self) -> dict[str, float]:
        """See `LearnerTransport.metrics`."""
        return {
            **self.table.counts().metrics(),
            "control/strays": self._strays,
            "control/strangers": self._listener.strangers,
            "control/exhausted": self._listener.exhausted,
        }

    def close(self) -> None:
        """See `LearnerTransport.close`."""
        with self._wake_lock:
            if self._closed:
                return
            self._closed = True
            os.close(self.wake_fd)
        for peer in self._peers.values():
            peer.sock.close()
        for peers in (self._peers, self._pending, self._owners):
            peers.clear()
        self._epoll.close()
        self._listener.close()

    def __enter__(self) -> ControlServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ready(self) -> list[tuple[int, int]] | None:
        """What can be read now; None for nothing."""
        return self._epoll.poll(0.0, len(self._peers) + 2) or None

    def _pass(self, ready: list[tuple[int, int]]) -> None:
        """Take one message of each connection that has some."""
        now = self._clock()
        later = []
        for fd, mask in ready:
            peer = self._peers.get(fd)
            if peer is None or (peer.lease is None and not peer.ending):
                later.append((fd, mask))
            else:
                self._serve(peer, mask, now)
        # Registrations come last, so that an actor that reconnects at once finds its old lease gone.
        for fd, mask in later:
            peer = self._peers.get(fd)
            if peer is not None:
                self._serve(peer, mask, now)
            elif fd == self.wake_fd:
                os.eventfd_read(fd)
            elif fd == self._listener.fileno():
                self._accept(now)

    def _serve(self, peer: Peer, mask: int, now: float) -> None:
        if not mask & GONE:
            if not peer.ending:
                self._receive(peer, now)
            return
        # Last messages may still be queued behind the error: a reported fault explains the end.
        peer.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        while not peer.ending and self._receive(peer, now):
            pass
        self._gone(peer)

    def _receive(self, peer: Peer, now: float) -> bool:
        """Take one message. Returns whether there was one."""
        buffer = self._buffer
        try:
            size = peer.sock.recv_into(buffer)
        except (BlockingIOError, ConnectionResetError):  # epoll reports the reset, see _serve
            return False
        if size == 2 and buffer[0] == RING and peer.lease is not None:
            self._ring(peer, peer.lease, buffer[1], now)
            return True
        if size == 0:
            self._drop(peer, "the actor closed its connection", "closed")
            return False
        try:
            self._control(peer, memoryview(buffer)[:size], now)
        except MalformedMessage as error:
            self._drop(peer, f"malformed message: {error}", "protocol")
        return True

    def _ring(self, peer: Peer, lease: Lease, group: int, now: float) -> None:
        dropped = admit_ring(self.table, self.slab, lease, group, now)
        if dropped is None:
            self._events.append(peer.rang[group])
        else:
            self._end_lease(dropped)

    def _control(self, peer: Peer, data: memoryview, now: float) -> None:
        message = decode(data)
        if peer.lease is None:
            if not isinstance(message, Register):
                raise MalformedMessage(f"{type(message).__name__} before Register")
            self._register(peer, message, now)
            return
        match message:
            case Heartbeat():
                self.table.heartbeat(peer.lease.id, now)
            case Silent():
                self._drop(peer, "the actor answered nothing any more, and its connection ended", "silent")
            case Fault(text, kind):
                peer.faults += 1
                if peer.faults > MAX_FAULTS:
                    raise MalformedMessage(f"more than {MAX_FAULTS} faults of one lease")
                self._events.append(FaultReported(peer.lease, text, kind))
            case Ring(group):
                self._ring(peer, peer.lease, group, now)
            case _:
                raise MalformedMessage(f"{type(message).__name__} is not for the learner, or not now")

    def _register(self, peer: Peer, message: Register, now: float) -> None:
        if (refusal := objection(message, self._token)) is not None:
            self.table.refused(refusal[0])
            self._refuse(peer, refusal[1])
            return
        if self._finished is not None:
            self._end(peer, encode(ExitOrder(self._finished, "finished")))
            return
        decision = self.table.register(message.registration, now)
        if decision.superseded is not None:
            newer = message.registration
            reason = f"superseded by generation {newer.generation} of {newer.name}"
            self._end_lease(DroppedLease(decision.superseded, reason, "superseded"), "superseded")
        if isinstance(decision, RefusedLease):
            self._refuse(peer, decision.reason, decision.retryable)
            return
        lease = decision.lease
        self.slab.reset_counters(lease.block)
        del self._pending[peer.fd]
        peer.lease = lease
        peer.rang = tuple(GroupRang(lease, group) for group in range(lease.groups))
        self._owners[lease.id] = peer
        self._events.append(LeaseOpened(lease))
        try:
            send_granted(peer.sock, Granted(lease), self.slab.fd)
        except OSError as error:
            self._drop(peer, f"the actor left while it was granted a lease: {error.strerror}", "closed")

    def _refuse(self, peer: Peer, reason: str, retryable: bool = False) -> None:
        log.info("refused a registration: %s", reason)
        self._end(peer, encode(Refused(reason, retryable)))

    def _accept(self, now: float) -> None:
        accepted, exhausted = self._listener.accept(ACCEPTS)
        for sock in accepted:
            peer = Peer(sock, now)
            if len(self._pending) >= MAX_PENDING:
                self.table.refused("full")
                peer.send(encode(Refused(f"{MAX_PENDING} others are registering", retryable=True)))
                sock.close()
                continue
            self._peers[peer.fd] = self._pending[peer.fd] = peer
            self._epoll.register(peer.fd, select.EPOLLIN | select.EPOLLRDHUP)
        if exhausted:
            self._epoll.modify(self._listener, 0)
            self._listening = False

    def _tick(self, now: float) -> None:
        late = now - self._next_tick
        if late > PAUSE_SECONDS:
            log.warning("the learner stood still for %.0f s, which counts against no actor", late)
            self.table.forgive(late)
        self._next_tick = now + TICK_SECONDS
        if not self._listening:
            self._epoll.modify(self._listener, select.EPOLLIN)
            self._listening = True
        for lease in self.table.due(now, TICK_SECONDS):
            # An actor's environments may hold the interpreter lock, and its heartbeat with it, for that long.
            if is_at_work(self._owners[lease.id].process):
                self.table.heartbeat(lease.id, now)
        for dropped in self.table.tick(now):
            self._end_lease(dropped)
        for peer in [p for p in self._pending.values() if now - p.since > REGISTER_SECONDS]:
            log.info("closed a connection that did not register within %s s", REGISTER_SECONDS)
            self._strays += 1
            self._forget(peer)

    def _drop(self, peer: Peer, reason: str, ending: Ending) -> None:
        """Give up on a connection, with or without a lease."""
        if peer.lease is None:
            log.info("dropped a connection that has no lease: %s", reason)
            self._strays += 1
            self._end(peer, encode(ExitOrder(reason, "dropped")))
            return
        dropped = self.table.drop(peer.lease.id, reason, ending)
        if dropped is not None:
            self._end_lease(dropped)

    def _end_lease(self, dropped: DroppedLease, code: ExitCode = "dropped") -> None:
        """Carry out the table's instruction: tell the owner, then wait for it to go."""
        self._events.append(LeaseClosed(dropped.lease, dropped.reason, dropped.ending))
        self._end(self._owners[dropped.lease.id], encode(ExitOrder(dropped.reason, code)))

    def _end(self, peer: Peer, last: bytes) -> None:
        """Send a last message and listen for nothing but the end of the connection."""
        peer.ending = True
        peer.send(last)
        if peer.lease is None:
            self._forget(peer)
            return
        with contextlib.suppress(OSError):  # it has gone already, which epoll reports too
            peer.sock.shutdown(socket.SHUT_WR)
        self._epoll.modify(peer.fd, 0)  # leaves EPOLLHUP and EPOLLERR

    def _gone(self, peer: Peer) -> None:
        """The connection is at its end: nobody writes into its block any more."""
        if peer.lease is not None:
            dropped = self.table.writer_gone(peer.lease.id)
            if dropped is not None:
                self._events.append(LeaseClosed(dropped.lease, dropped.reason, dropped.ending))
            del self._owners[peer.lease.id]
        self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        # One that was refused while its last messages were read is forgotten already.
        if self._peers.pop(peer.fd, None) is None:
            return
        self._pending.pop(peer.fd, None)
        self._epoll.unregister(peer.fd)
        peer.sock.close()

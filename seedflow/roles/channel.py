"""The role's half: its start message, its stop request, what it reports, and how it exits."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from seedflow.errors import TransportError
from seedflow.interrupts import PREEMPTION
from seedflow.roles.family import end_members, kill_members
from seedflow.roles.messages import (
    BOARD_SIZE,
    EXIT_FAILED,
    MAX_LINE,
    MAX_START_LINE,
    Message,
    decode,
    encode,
    failure,
)

MAX_QUEUED = 256
"""Messages, and apart from them those of each kind that may be dropped, that wait for the supervisor."""
DROPPABLE = ("metrics", "note")
"""The newest ones are worth more than those before, and whoever sends them says the same in the log."""
ORPHAN_SECONDS = 5.0
"""How long a role whose supervisor is gone may take to stop."""
CHILD_SECONDS = 1.0
"""How long a role's own children may take after SIGTERM."""
EXIT_SECONDS = 5.0
"""How long the interpreter may take to exit after a role has closed."""


class RoleChannel:
    """The supervisor, seen from the role process.

    Invariant: `stop_requested` is set as soon as the role must end, for whatever reason, and stays set.
    Make it with `open`, in the main thread, before anything writes to stdout; most roles use `run_role`.

    Attributes
    ----------
    start
        The start message.
    stop_requested
        Set by a ``stop`` message, SIGTERM, the supervisor's death, or a line that is no message.
    orphaned
        Set when the supervisor is gone. The process is ended soon after, gracefully or not.
    endpoint
        The newest ``endpoint`` message's content: where the learner is after it was placed again. None
        until there was one.
    board
        `BOARD_SIZE` bytes that the supervisor can read even after the role has crashed; what they mean is the
        role's affair.
    fault
        The `TransportError` of a malformed line, or None.
    dropped
        Metrics and notes dropped because the supervisor did not read.
    at_forced_exit
        Called, from another thread, where an orphan is ended in the middle of its work.
    """

    def __init__(self, in_fd: int, out_fd: int, orphan_seconds: float = ORPHAN_SECONDS) -> None:
        self._in, self._out = in_fd, out_fd
        self._parent = os.getppid()
        self._orphan_seconds = orphan_seconds
        self._received = bytearray()
        self._queue: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._broken = False
        self._done = threading.Event()
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.start: Message = {}
        self.stop_requested = threading.Event()
        self.orphaned = threading.Event()
        self.endpoint: Message | None = None
        self.board = mmap.mmap(-1, BOARD_SIZE)
        self.fault: TransportError | None = None
        self.dropped = 0
        self.at_forced_exit: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, *, start_seconds: float = 60.0, orphan_seconds: float = ORPHAN_SECONDS) -> RoleChannel:
        """Take over stdin and stdout, install the signal handlers and read the start message.

        Afterwards stdin is empty and stdout is the log file.

        Raises
        ------
        TransportError
            If there is no supervisor at the other end, or no start message in time.
        """
        if os.isatty(0):
            raise TransportError(
                "this process is started by seedflow's supervisor and reads its start message from a pipe, "
                "but its standard input is a terminal; use `seedflow train`"
            )
        channel = cls(os.dup(0), os.dup(1), orphan_seconds)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdout.flush()
        os.dup2(2, 1)
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(file=2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in PREEMPTION.values():  # the driver's affair, and ignored by all that a role starts
            signal.signal(number, signal.SIG_IGN)
        # A lock taken in a handler can deadlock with the code it interrupts: only a byte is written.
        signal.signal(signal.SIGTERM, lambda number, frame: channel._wake(b"T"))
        # The mask is inherited: a supervisor's thread may have been one that blocks them.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        os.register_at_fork(after_in_child=channel._after_fork)
        channel.start = channel._read_start(start_seconds)
        if isinstance(board := channel.start.get("board"), int):
            channel.board = mmap.mmap(board, BOARD_SIZE)
            os.close(board)
        threading.Thread(target=channel._watch, name="role-watch", daemon=True).start()
        threading.Thread(target=channel._write, name="role-write", daemon=True).start()
        return channel

    def send(self, message: Message) -> None:
        """Queue a message for the supervisor; never blocks.

        Where the supervisor does not read, or not that fast, the oldest metrics and notes make room and are
        counted; too many other messages are an error.
        """
        kind, line = str(message["kind"]), encode(message)
        shared = kind if kind in DROPPABLE else ""
        with self._changed:
            queued = [item for item in self._queue if item[0] == shared]
            if len(queued) >= MAX_QUEUED and not self._broken:
                if not shared:
                    raise TransportError(f"{MAX_QUEUED} messages wait for a supervisor that does not read")
                self._queue.remove(queued[0])
                self.dropped += 1
            self._queue.append((shared, line))
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is written; whether that was so in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._broken or not (self._queue or self._writing), timeout=timeout
            )

    def close(self) -> None:
        """Send what is queued, and end every process that this role has started."""
        self.flush(2.0)
        end_members(os.getpid(), self._own_marker(), CHILD_SECONDS)
        self._done.set()
        self._wake(b"C")

    def abandon(self, code: int) -> NoReturn:
        """Send what is queued, and end the process and all that it has started, whatever it is doing."""
        try:
            self.flush(2.0)
            kill_members(os.getpid(), self._own_marker())
        finally:
            os._exit(code)

    def _own_marker(self) -> str:
        return str(self.start.get("marker", ""))

    def _wake(self, byte: bytes) -> None:
        try:
            os.write(self._wake_w, byte)
        except BlockingIOError:  # full of earlier bytes, which do as well
            return

    def _after_fork(self) -> None:
        """A forked child is no role: it ends on SIGTERM and holds no end of the role's pipes."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for fd in (self._in, self._out, self._wake_r, self._wake_w):
            os.close(fd)

    def _read_start(self, seconds: float) -> Message:
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._in, select.POLLIN)
        while b"\n" not in self._received:
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TransportError(f"no start message came within {seconds:g} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise TransportError("the supervisor has gone before it sent a start message")
            self._received += data
            if len(self._received) > MAX_START_LINE + MAX_LINE:
                raise TransportError(f"the start message has more than {MAX_START_LINE} bytes")
        line, _, rest = self._received.partition(b"\n")
        self._received = rest
        try:
            message: Any = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("kind") != "start":
            # The line is not shown: it may hold the token.
            raise TransportError(f'the first line ({len(line)} bytes) is no JSON object of kind "start"')
        return message

    def _watch(self) -> None:
        """Thread: turn lines, SIGTERM and the supervisor's death into `stop_requested`."""
        poller = select.poll()
        poller.register(self._in, select.POLLIN)
        poller.register(self._wake_r, select.POLLIN)
        self._take_lines()
        while not self._done.is_set():
            ready = {fd for fd, _ in poller.poll(1000)}
            if self._wake_r in ready and b"T" in os.read(self._wake_r, 4096):
                self.stop_requested.set()
            gone = os.getppid() != self._parent
            if self._in in ready:
                data = os.read(self._in, 65536)
                gone = gone or not data
                self._received += data
                self._take_lines()
            if gone and not self._done.is_set():
                self._end_as_orphan()

    def _take_lines(self) -> None:
        while (end := self._received.find(b"\n")) >= 0 or len(self._received) > MAX_LINE:
            line = bytes(self._received[: end if end >= 0 else MAX_LINE])
            del self._received[: len(line) + 1]
            try:
                message = decode(line, "the supervisor")
                if message["kind"] == "endpoint" and isinstance(message.get("endpoint"), dict):
                    self.endpoint = message["endpoint"]
                    continue
                if message["kind"] != "stop":
                    raise TransportError(
                        f'the supervisor sent {line[:200]!r}: expected kind "stop", '
                        'or "endpoint" with an object'
                    )
            except TransportError as error:
                self.fault = self.fault or error
                print(f"seedflow: {error}", file=sys.stderr)
            self.stop_requested.set()

    def _end_as_orphan(self) -> None:
        self.orphaned.set()
        self.stop_requested.set()
        print("seedflow: the supervisor is gone, stopping", file=sys.stderr)
        self._done.wait(self._orphan_seconds)
        if not self._done.is_set():
            print(f"seedflow: not stopped within {self._orphan_seconds:g} s, exiting", file=sys.stderr)
            try:
                kill_members(os.getpid(), self._own_marker())
                self.at_forced_exit()
            finally:
                os._exit(EXIT_FAILED)

    def _write(self) -> None:
        """Thread: write queued lines; the only one that may wait for the supervisor to read."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue), timeout=1.0)
                if not self._queue:
                    if self._done.is_set():
                        return
                    continue
                line = self._queue.popleft()[1]
                self._writing = True
            try:
                while line:
                    line = line[os.write(self._out, line) :]
            except BrokenPipeError:  # the supervisor is gone; the watching thread sees to that
                self._broken = True
            with self._changed:
                self._writing = False
                self._changed.notify_all()


def run_role(main: Callable[[RoleChannel], int], orphan_seconds: float = ORPHAN_SECONDS) -> NoReturn:
    """Run a role's `main` with an open channel, and exit with the code it returns.

    An exception out of `main` is reported as a ``failed`` message that allows a restart. Afterwards every
    process that the role has started is ended, and so is this one even where a thread does not finish.
    """
    try:
        channel = RoleChannel.open(orphan_seconds=orphan_seconds)
    except TransportError as error:
        sys.exit(f"seedflow: {error}")
    try:
        code = main(channel)
        if channel.fault is not None:
            raise channel.fault
    except BaseException as error:  # SystemExit from deep within a library is a failure too
        traceback.print_exc()
        channel.send(failure(error, retryable=True))
        code = EXIT_FAILED
    channel.close()
    guard = threading.Timer(EXIT_SECONDS, os._exit, (code,))
    guard.daemon = True
    guard.start()
    sys.exit(code)

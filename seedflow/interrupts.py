"""Ctrl-C and other requests to end a program.

All end it in order: an exception is raised in the main thread, so that every ``with`` block and
``finally`` on the way out does its work. One request is enough; the next ones must not disturb what saves
and ends the processes of a run.

- `ending_on_signals` is for programs: Ctrl-C, SIGTERM and SIGHUP raise `Signalled`.
- `sigterm_as_exit` is for runs inside somebody else's program, which handles Ctrl-C as it likes.
- `also_ended_by` adds a signal that announces pre-emption, for one run.
- `uninterrupted`, `starting_processes` and `between_steps` put off what would break a thing in the middle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = "Stopping the run and saving a checkpoint ..."
"""Told at once when a signal ends a run: saving and ending take a while."""
FORCING = 3
"""So many Ctrl-C end a program at once."""
PREEMPTION = {"SIGUSR1": signal.SIGUSR1, "SIGUSR2": signal.SIGUSR2}
"""Signals by which batch schedulers announce that a job is about to end, if asked to."""
MOST_PUT_OFF = 2
"""So many signals wait for the end of something; one more ends it."""


_announcing: list[signal.Signals] = []  # in `also_ended_by` now


class Signalled(KeyboardInterrupt):
    """A signal asks the program to end; the same clean way out as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class Ending:
    """Raises `Signalled` for the first signal. Impatience is heard only from a keyboard.

    Attributes
    ----------
    unwinding
        Whether nothing is raised any more: there was a signal, or the program ends anyway.
    """

    def __init__(self) -> None:
        self.unwinding = False
        self._received: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if not self.unwinding:
            self.unwinding = True
            raise Signalled(number)
        if number != signal.SIGINT:
            return
        if self._received.count(signal.SIGINT) < FORCING:
            # Not by sys.stderr, which the interrupted code may just be writing to. It may be closed.
            with contextlib.suppress(OSError):
                os.write(2, b"Ending in order; press Ctrl-C once more to end at once.\n")
        else:
            os._exit(128 + number)


class _Exit:
    """Raises SystemExit for the first signal."""

    def __init__(self) -> None:
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._raised:
            self._raised = True
            raise SystemExit(128 + number)


def end_on_signals() -> Ending:
    """For the rest of the process: Ctrl-C, SIGTERM and SIGHUP raise `Signalled`, once.

    A signal that is ignored, as under nohup, or that the program handles already, is left alone. Children
    that are forked, by an environment for example, leave Ctrl-C to this process and end by the others.
    """
    handler = Ending()
    for number in _unhandled():
        signal.signal(number, handler)
    os.register_at_fork(after_in_child=_forked)
    return handler


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """`end_on_signals` until the end of the block."""
    before = {number: signal.getsignal(number) for number in _unhandled()}
    end_on_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn the first SIGTERM into a SystemExit with code 128 + 15 in the main thread.

    Later ones change nothing. Does nothing outside the main thread, or where the program has its own
    handler.
    """
    if signal.SIGTERM not in _unhandled():
        yield
        return
    signal.signal(signal.SIGTERM, _Exit())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def also_ended_by(name: str | None) -> Iterator[None]:
    """Until the end of the block, a signal of `PREEMPTION` does what SIGTERM does.

    A scheduler may send it to every process of a job: those that are started or forked meanwhile ignore it.

    Parameters
    ----------
    name
        Of the signal; None: none does.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if name is None or not _in_main_thread() or not callable(handler):
        yield
        return
    number = PREEMPTION[name]
    before = signal.signal(number, handler)
    _announcing.append(number)
    try:
        yield
    finally:
        _announcing.remove(number)
        signal.signal(number, before)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what signals do until the end of the block; a third one acts at once."""
    with _put_off():
        yield


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Put off what signals do until the end of the block, and keep Ctrl-C from what it starts for good.

    A terminal sends Ctrl-C to every process of the job. Workers that get it die with tracebacks while
    the driver still needs them to end the roles. The signal mask is inherited by processes and threads
    that are started inside, so they never see it. The mask alone would not do for this process: the signal
    may reach another thread.
    """
    with _put_off():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_announcing})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Interrupts:
    """Signals that wait for a moment at which they do no harm; made by `between_steps`."""

    def __init__(self, received: list[int]) -> None:
        self._received = received

    @property
    def waiting(self) -> bool:
        return bool(self._received)


@contextlib.contextmanager
def between_steps() -> Iterator[Interrupts]:
    """Put off the first signal until the end of the block, which looks for it now and then.

    A second one acts at once: the step may never end.
    """
    with _put_off(most=1) as received:
        yield Interrupts(received)


@contextlib.contextmanager
def _put_off(most: int = MOST_PUT_OFF) -> Iterator[list[int]]:
    """Note signals that have a handler in Python, at most so many; handle them at the end of the block."""
    received: list[int] = []
    handlers: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def note(number: int, frame: FrameType | None) -> None:
        handler = handlers[signal.Signals(number)]
        if isinstance(handler, Ending) and handler.unwinding:
            handler(number, frame)  # raises nothing, and hears impatience
            return
        received.append(number)
        if len(received) > most:
            received.clear()
            handler(number, frame)

    if _in_main_thread():
        found = {number: signal.getsignal(number) for number in (*ENDING, *_announcing)}
        handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, note)
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for noted in received:
            signal.raise_signal(noted)


def _forked() -> None:
    for number in (*ENDING, *_announcing):
        if isinstance(signal.getsignal(number), Ending):
            ignored = number == signal.SIGINT or number in _announcing
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)


def _unhandled() -> list[signal.Signals]:
    """The ending signals that still do what they do in every new process."""
    if not _in_main_thread():
        return []
    return [
        number
        for number in ENDING
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler)
    ]


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

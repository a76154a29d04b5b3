"""Ctrl-C and SIGTERM in the driver.

Both end a run in order: Ctrl-C as Python's KeyboardInterrupt, SIGTERM as a SystemExit with code
128 + 15, so that every ``with`` block and ``finally`` on the way out does its work.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class _Sigterm:
    """Raises SystemExit for the first SIGTERM, at once or when `held` is back at 0."""

    def __init__(self) -> None:
        self.held = 0
        self.waiting = False
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self.waiting = True
        else:
            self.exit()

    def exit(self) -> None:
        self.waiting = False
        if not self._raised:
            self._raised = True
            raise SystemExit(128 + signal.SIGTERM)


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn the first SIGTERM into a SystemExit in the main thread; later ones change nothing.

    Does nothing outside the main thread, or where the program has its own handler.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _Sigterm())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until the end of the block, and Ctrl-C from what it starts for good.

    A terminal sends Ctrl-C to every process of the job. Workers that get it die with tracebacks while
    the driver still needs them to end the roles. The signal mask is inherited by processes and threads
    that are started inside, so they never see it.
    """
    handler = signal.getsignal(signal.SIGTERM)
    ours = handler if isinstance(handler, _Sigterm) and _in_main_thread() else None
    if ours is not None:
        ours.held += 1
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if ours is not None:
            ours.held -= 1
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if ours is not None and ours.waiting:
        ours.exit()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

"""Noticing an environment that does not return."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

from seedflow.actor.activity import Activity
from seedflow.errors import EnvironmentFault

LONGEST_PAUSE = 1.0


class Watchdog:
    """A thread that looks whether a call of an environment takes too long.

    Code that holds the interpreter lock stops this thread, too; then the supervisor notices, a little later.

    Parameters
    ----------
    activity
        What the main thread is doing.
    seconds
        How long a call may take; None watches nothing.
    found
        Called once, in the thread, with a fault that says where the main thread hangs.
    """

    def __init__(
        self, activity: Activity, seconds: float | None, found: Callable[[EnvironmentFault], None]
    ) -> None:
        self._activity, self._found = activity, found
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watchdog:
        if self._seconds is not None:
            self._thread = threading.Thread(
                target=self._watch, args=(self._seconds,), name="actor-watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, seconds: float) -> None:
        while not self._stopping.wait(min(LONGEST_PAUSE, seconds / 4)):
            if self._activity.overdue(seconds):
                self._found(self._fault(seconds))
                return

    def _fault(self, seconds: float) -> EnvironmentFault:
        doing = self._activity.describe()
        fault = EnvironmentFault(
            f"{doing} has not returned for {seconds:g} s; look for what it waits for, or raise "
            "actor.env_timeout_seconds",
            identity=f"{doing.partition(' ')[0]} has not returned",
        )
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        fault.add_note("It was here:\n" + "".join(traceback.format_stack(frame)))
        return fault

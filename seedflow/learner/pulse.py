"""Whether the loops of a learner go on, as a process beside it can see.

A learner that is stopped, or whose loops wait for each other, reports nothing wrong: it does nothing. Each
loop writes the time at the beginning of every turn into the role's board, memory that its supervisor reads.

Examples
--------
>>> pulse = Pulse(bytearray(SIZE), clock=lambda: 100.0)
>>> pulse.slowest(now=500.0)
('', 0.0)
>>> pulse.beat("training")
>>> pulse.slowest(now=130.0)
('training', 30.0)
>>> pulse.end("training")
>>> pulse.slowest(now=500.0)
('', 0.0)
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable
from typing import Any

from seedflow.roles import RoleProcess

LOOPS = ("inference", "prefetch", "training")
SIZE = 8 * len(LOOPS)
LONGEST_PAUSE = 15.0
"""Seconds between two looks that only a process has made that was stopped itself."""

_TIME = struct.Struct("=d")
_TIMES = struct.Struct(f"={len(LOOPS)}d")  # 0: does not run
_AT = {name: 8 * number for number, name in enumerate(LOOPS)}


class Pulse:
    """When each loop last began a turn.

    Parameters
    ----------
    memory
        At least `SIZE` bytes, zero at start. Read-only bytes will do for who only looks.
    clock
        Seconds of a clock that all processes of the machine share.
    """

    def __init__(self, memory: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory, self._clock = memory, clock

    def beat(self, loop: str) -> None:
        """A loop begins a turn."""
        _TIME.pack_into(self._memory, _AT[loop], self._clock())

    def end(self, loop: str) -> None:
        """It has ended for good."""
        _TIME.pack_into(self._memory, _AT[loop], 0.0)

    def slowest(self, now: float) -> tuple[str, float]:
        """The loop whose present turn is the longest, and for how many seconds; ``("", 0.0)`` without one."""
        begun = dict(zip(LOOPS, _TIMES.unpack_from(self._memory), strict=True))
        running = {name: now - since for name, since in begun.items() if since}
        return max(running.items(), key=lambda item: item[1], default=("", 0.0))


class Stillness:
    """Looks whether a process of a learner stands still for too long.

    What stands still because all of the machine's processes do, in a job that is suspended, say, does not
    count: looks have to go on meanwhile.

    Parameters
    ----------
    process
        The learner's process, or its training process.
    hang_seconds
        How long a turn of a loop may take; None: for ever.
    stopped_seconds
        How long the process may be stopped by a signal.
    clock
        The one that the process's pulse is written by.
    """

    def __init__(
        self,
        process: RoleProcess,
        hang_seconds: float | None,
        stopped_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process, self._clock = process, clock
        self._hang_seconds = math.inf if hang_seconds is None else hang_seconds
        self._stopped_seconds = stopped_seconds
        self._looked_at = self._watching_since = self._going_at = clock()

    def look(self) -> str:
        """What stands still, in words; empty if nothing does. To be called every second or so."""
        now = self._clock()
        if now - self._looked_at > LONGEST_PAUSE:
            self._watching_since = now
        self._looked_at = now
        if not self._process.is_stopped():
            self._going_at = now
        elif now - max(self._going_at, self._watching_since) > self._stopped_seconds:
            return f"its process was stopped for {self._stopped_seconds:g} s (inference.lease_seconds)"
        loop, seconds = Pulse(self._process.board()).slowest(now)
        if min(seconds, now - self._watching_since) > self._hang_seconds:
            return f"its {loop} loop stood still for {self._hang_seconds:g} s (learner.hang_seconds)"
        return ""

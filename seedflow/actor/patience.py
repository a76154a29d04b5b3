"""How long an actor looks for its learner, and how long it pauses between two attempts.

Examples
--------
>>> seconds = iter([0.0, 4.0, 100.0, 103.0])
>>> patience = Patience(10.0, clock=lambda: next(seconds))
>>> patience.search()      # at 0 s
>>> patience.found()       # at 4 s; the time until the next search does not count
>>> patience.search()      # at 100 s
>>> patience.left()        # at 103 s
3.0
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


class Patience:
    """A budget of seconds spent searching, and a pause that doubles from attempt to attempt.

    Invariant: only `progress` renews the budget. A learner that grants a lease and loses it at once, again
    and again, uses the budget up too, while the time spent connected is free.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: float | None = None
        self.progress()

    def search(self) -> None:
        """The search begins, or goes on."""
        if self._since is None:
            self._since = self._clock()

    def found(self) -> None:
        """A lease was granted: the time stops."""
        if self._since is not None:
            self._spent += self._clock() - self._since
            self._since = None

    def progress(self) -> None:
        """The connection has proved useful: the next search has the whole budget."""
        self._spent = 0.0
        self._failures = 0

    def left(self) -> float:
        """Seconds of the budget that are left."""
        running = 0.0 if self._since is None else self._clock() - self._since
        return self._seconds - self._spent - running

    def pause(self) -> float:
        """Seconds to wait before the next attempt; 0 before the first one after progress."""
        failures, self._failures = self._failures, self._failures + 1
        if failures == 0:
            return 0.0
        # Actors that lose their learner together should not all come back together.
        longest = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), LONGEST_PAUSE)
        return longest * random.uniform(0.5, 1.0)

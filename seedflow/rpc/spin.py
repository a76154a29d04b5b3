"""Looking again and again for a moment before going to sleep.

Where the other side answers within microseconds, to sleep and to be woken takes longer than to wait awake,
and costs both sides more CPU time. Elsewhere waiting awake is a waste. `Spin` tells the two apart by what
came of it lately.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 40e-6
PAYS = 0.3  # share of successes from which on it is tried every time
WEIGHT = 0.05  # of the last try in that share
RETRY = 64  # where it does not pay, every so many waits it is tried all the same


class Spin:
    """Decides whether to look for a moment, and does it.

    Parameters
    ----------
    clock
        Seconds.

    Examples
    --------
    >>> answers = iter([None, None, "an answer"])
    >>> Spin(clock=lambda: 0.0).look(lambda: next(answers))
    'an answer'
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._share = 1.0
        self._skipped = 0

    def look(self, find: Callable[[], Found | None]) -> Found | None:
        """Call `find` until it finds something, for `SECONDS` at most, or not at all; return that."""
        if self._share < PAYS:
            self._skipped += 1
            if self._skipped < RETRY:
                return None
            self._skipped = 0
        end = self._clock() + SECONDS
        found = find()
        while found is None and self._clock() < end:
            found = find()
        self._share += WEIGHT * ((found is not None) - self._share)
        return found

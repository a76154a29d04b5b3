"""A lock that threads or processes may share."""

from __future__ import annotations

import os
import select
from types import TracebackType
from typing import Self

WAIT_SECONDS = 30.0


class EventLock:
    """Mutual exclusion over an eventfd, which processes can inherit. Held for microseconds only.

    Parameters
    ----------
    event
        A non-blocking eventfd whose value is 1; the lock closes it. By default a new one.
    """

    def __init__(self, event: int | None = None) -> None:
        self._event = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if event is None else event

    def __enter__(self) -> Self:
        while True:
            try:
                os.eventfd_read(self._event)
                return self
            except BlockingIOError:
                if not select.select([self._event], [], [], WAIT_SECONDS)[0]:
                    raise TimeoutError(
                        f"a lock between two loops of the learner was not free within {WAIT_SECONDS:g} s: "
                        "the process that holds it is stopped or gone"
                    ) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        """Close the eventfd; the lock is not used afterwards. May be called twice."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

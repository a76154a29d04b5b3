"""Keeping the gateway up: it is started again where it has ended or does nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable

from seedflow.errors import TransportError
from seedflow.rpc.gateway_counts import GatewayCounts
from seedflow.rpc.gateway_process import GatewayProcess

SILENT_SECONDS = 30.0
"""A gateway that has said nothing for so long is stopped, or hangs."""
STOPPED_SECONDS = 15.0
"""A pause between two looks that only a process has made that was stopped."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Between two attempts to start it, doubled from one to the next."""
START_SECONDS = 10.0


class GatewayKeeper:
    """Looks after a gateway that has been started; local actors never wait for it.

    Parameters
    ----------
    gateway
        A running gateway; stays the caller's.
    report
        Called with a line about something that a person should know.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        gateway: GatewayProcess,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._gateway, self._report, self._clock = gateway, report, clock
        self._before = GatewayCounts()  # of the processes before this one
        self._pause = 0.0
        self._next = 0.0
        self._looked_at = self._watching_since = clock()
        self.restarts = 0

    def look(self) -> None:
        """Start the gateway again if it has to be, and if it is time to try."""
        code, silence = self._gateway.poll(), self._silence()
        if self._pause == 0.0:
            if code is None and silence < SILENT_SECONDS:
                return
            why = f"has said nothing for {silence:.0f} s" if code is None else f"ended with code {code}"
            self._report(f"the gateway {why}; starting it again")
            self._before += self._gateway.counts()
        if self._clock() < self._next:
            return
        try:
            self._gateway.restart(START_SECONDS)
        except TransportError as error:
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._next = self._clock() + self._pause
            self._report(f"{error}; trying again in {self._pause:g} s, remote actors wait so long")
        else:
            self._pause, self.restarts = 0.0, self.restarts + 1

    def _silence(self) -> float:
        """Seconds of silence that somebody listened to: this process may have been stopped itself."""
        now = self._clock()
        if now - self._looked_at > STOPPED_SECONDS:
            self._watching_since = now
        self._looked_at = now
        return min(self._gateway.silent_for(), now - self._watching_since)

    def metrics(self) -> dict[str, float]:
        """Restarts, and what all gateway processes of this run have counted, by metric name."""
        counts = self._before if self._pause else self._before + self._gateway.counts()
        return {"gateway/restarts": self.restarts, **counts.metrics()}

"""Counting and measuring in the hot loops, reading once every few seconds.

Examples
--------
>>> metrics = Metrics()
>>> metrics.add("steps/agent", 64)
>>> metrics.set("slots/free", 12)
>>> metrics.observe("inference/batch_size", 64)
>>> metrics.observe("inference/batch_size", 32)
>>> metrics.snapshot()
{'steps/agent': 64, 'slots/free': 12, 'inference/batch_size': 48.0}
>>> metrics.snapshot()  # counters and gauges stay, distributions begin anew
{'steps/agent': 64, 'slots/free': 12}
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from seedflow.metrics.names import statistics_of

WINDOW = 4096
"""Values over which a percentile is taken: the most recent ones of an interval."""


class Metrics:
    """Counters, gauges and distributions that several threads update and one reads.

    Invariant: a name has one kind for good. Every update is a dictionary operation under one lock
    that is never held for longer, so a loop pays well below a microsecond for it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, str] = {}
        self._counters: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._distributions: dict[str, _Distribution] = {}

    def add(self, name: str, n: float = 1) -> None:
        """Increase a counter, which begins at 0."""
        with self._lock:
            try:
                self._counters[name] += n
            except KeyError:
                self._claim(name, "counter")
                self._counters[name] = n

    def set(self, name: str, value: float) -> None:
        """Give a gauge its present value."""
        with self._lock:
            if name not in self._gauges:
                self._claim(name, "gauge")
            self._gauges[name] = value

    def observe(self, name: str, value: float | npt.NDArray[Any] | Sequence[float]) -> None:
        """Add one value, or all values of an array, to a distribution. An empty array adds nothing."""
        if isinstance(value, float | int):
            with self._lock:
                try:
                    self._distributions[name].add(value)
                except KeyError:
                    self._begin(name).add(value)
            return
        values = np.asarray(value, np.float64).ravel()
        if values.size == 0:
            return
        with self._lock:
            try:
                self._distributions[name].extend(values)
            except KeyError:
                self._begin(name).extend(values)

    def snapshot(self) -> dict[str, float]:
        """Read everything, and begin all distributions anew.

        Returns
        -------
        dict
            Totals of counters, values of gauges, and for each distribution that saw a value since
            the snapshot before: its mean under its name, and, for durations (``..._ms``) and policy
            lag, ``<name>_p50`` and ``<name>_p99`` over the last `WINDOW` values. A distribution that
            saw nothing is absent, rather than zero or NaN.
        """
        with self._lock:
            values = {**self._counters, **self._gauges}
            finished, self._distributions = self._distributions, {}
        values = {name: _plain(value) for name, value in values.items()}
        for name, distribution in finished.items():
            values.update(distribution.summary(name))
        return values

    def _begin(self, name: str) -> _Distribution:
        self._claim(name, "distribution")
        return self._distributions.setdefault(name, _Distribution(name))

    def _claim(self, name: str, kind: str) -> None:
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise ValueError(f"metric {name!r} is a {known} already: it cannot be used as a {kind} too")


class Rate:
    """Slope of a counter between successive snapshots.

    Parameters
    ----------
    counter
        Name of the counter.
    name
        Name of the rate.
    clock
        Seconds from an arbitrary origin.

    Examples
    --------
    >>> seconds = iter([10.0, 15.0])
    >>> rate = Rate("steps/agent", "rate/agent_steps_per_second", clock=lambda: next(seconds))
    >>> rate.of({"steps/agent": 1000})  # nothing to compare with yet
    {}
    >>> rate.of({"steps/agent": 1500})
    {'rate/agent_steps_per_second': 100.0}
    """

    def __init__(self, counter: str, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._name = name
        self._clock = clock
        self._before: tuple[float, float] | None = None

    def of(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return ``{name: units per second}`` since the call before.

        Empty where there is nothing to compare with: at the first call, which also makes a resumed
        run begin at its own count, without the counter, or after the counter went backwards.
        """
        if self._counter not in values:
            return {}
        now, total = self._clock(), values[self._counter]
        before, self._before = self._before, (now, total)
        if before is None or now <= before[0] or total < before[1]:
            return {}
        return {self._name: (total - before[1]) / (now - before[0])}


class _Distribution:
    """Sum and count of all values, and a ring of the last ones where percentiles are wanted."""

    __slots__ = ("_count", "_maximum", "_ring", "_statistics", "_total")

    def __init__(self, name: str) -> None:
        self._statistics = statistics_of(name)
        self._ring = np.empty(WINDOW) if self._statistics else None
        self._count = 0
        self._total = 0.0
        self._maximum = -math.inf

    def add(self, value: float) -> None:
        if self._ring is not None:
            self._ring[self._count % WINDOW] = value
            if value > self._maximum:
                self._maximum = value
        self._count += 1
        self._total += value

    def extend(self, values: npt.NDArray[np.float64]) -> None:
        if self._ring is not None:
            recent = values[-WINDOW:]
            begin = (self._count + values.size - recent.size) % WINDOW
            head = recent[: WINDOW - begin]
            self._ring[begin : begin + head.size] = head
            self._ring[: recent.size - head.size] = recent[head.size :]
            self._maximum = max(self._maximum, float(values.max()))
        self._count += values.size
        self._total += float(values.sum())

    def summary(self, name: str) -> dict[str, float]:
        values = {name: self._total / self._count}
        if self._ring is not None:
            window = self._ring[: min(self._count, WINDOW)]
            statistics = {
                "p50": float(np.percentile(window, 50)),
                "p99": float(np.percentile(window, 99)),
                "max": float(self._maximum),
            }
            values.update((f"{name}_{key}", statistics[key]) for key in self._statistics)
        return values


def _plain(value: float) -> float:
    """A Python number for a number of any library; whole numbers stay whole."""
    return int(value) if isinstance(value, int | np.integer) else float(value)

"""Timing several ways of doing one thing, in turns.

What is timed is the CPU time of the calling thread, which leaves out when other processes had the core:
contenders work on that thread alone and wait for nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SAMPLE_SECONDS = 0.002
"""How long one turn lasts about; shorter calls are repeated within it."""


@dataclass(frozen=True)
class Target:
    """A bound on the ratio of two contenders' times.

    Attributes
    ----------
    of, to
        The contender that has to be fast, and the one it is compared with.
    bound
        The ratio: how many times faster `of` has to be, or how many times slower it may be.
    direction
        Which of the two `bound` is.
    """

    of: str
    to: str
    bound: float
    direction: Literal["faster", "slower"] = "faster"

    def ratio(self, seconds: Mapping[str, float]) -> float:
        """The ratio that was measured."""
        of, to = seconds[self.of], seconds[self.to]
        return to / of if self.direction == "faster" else of / to

    def reached(self, seconds: Mapping[str, float]) -> bool:
        """Whether the ratio keeps to the bound."""
        ratio = self.ratio(seconds)
        return ratio >= self.bound if self.direction == "faster" else ratio <= self.bound


@dataclass(frozen=True)
class Measurement:
    """Seconds a call, by contender, and what they had to reach; `notes` names contenders that are absent."""

    name: str
    seconds: dict[str, float]
    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "seconds": self.seconds,
            "targets": [
                {
                    "of": target.of,
                    "to": target.to,
                    "direction": target.direction,
                    "bound": target.bound,
                    "ratio": target.ratio(self.seconds),
                    "reached": target.reached(self.seconds),
                }
                for target in self.targets
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.name]
        lines += [f"  {seconds * 1e6:10.1f} us  {name}" for name, seconds in self.seconds.items()]
        for target in self.targets:
            word = "reached" if target.reached(self.seconds) else "MISSED"
            sign = ">=" if target.direction == "faster" else "<="
            ratio, bound = target.ratio(self.seconds), target.bound
            what = f"{target.of} {target.direction} than {target.to}"
            lines.append(f"  {ratio:9.2f}x  {what} (target {sign} {bound:g}): {word}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def compare(
    name: str,
    contenders: Mapping[str, Callable[[], object]],
    targets: tuple[Target, ...] = (),
    *,
    rounds: int,
    notes: tuple[str, ...] = (),
) -> Measurement:
    """Time contenders in turns and take the median of each.

    Parameters
    ----------
    name
        What is measured.
    contenders
        Functions by name. Each is called a few times before it is timed.
    targets
        Those between contenders that are absent are left out.
    rounds
        Turns that each contender gets.
    notes
        Remarks for the reader.
    """
    repeats = {contender: _repeats(function) for contender, function in contenders.items()}
    samples: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in range(rounds):
        for contender, function in contenders.items():
            samples[contender].append(_time(function, repeats[contender]))
    seconds = {contender: statistics.median(times) for contender, times in samples.items()}
    kept = tuple(target for target in targets if {target.of, target.to} <= seconds.keys())
    return Measurement(name, seconds, kept, notes)


def _repeats(function: Callable[[], object]) -> int:
    for _ in range(3):  # compiles, warms caches
        function()
    return max(1, round(SAMPLE_SECONDS / max(min(_time(function, 1) for _ in range(5)), 1e-7)))


def _time(function: Callable[[], object], repeats: int) -> float:
    begin = time.thread_time()
    for _ in range(repeats):
        function()
    return (time.thread_time() - begin) / repeats

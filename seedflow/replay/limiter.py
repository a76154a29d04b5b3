"""How many sequences may be sampled for each one inserted.

A state machine without I/O: it is told of inserts and samples and says who may go on.

Examples
--------
>>> limiter = Limiter(min_size=10, ratio=2.0, tolerance=4.0)
>>> limiter.can_insert(size=9), limiter.can_sample(size=9, batch=4)
(True, False)
>>> limiter.can_sample(size=10, batch=4), limiter.can_sample(size=10, batch=5)
(True, False)
>>> limiter.inserted(size=10)
>>> limiter.balance, limiter.can_sample(size=11, batch=5)
(2.0, True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from seedflow.errors import CheckpointError


@dataclass(frozen=True)
class LimiterStatus:
    """Where the limiter stands.

    Attributes
    ----------
    size, min_size
        Sequences held, and needed before the first is sampled.
    balance, tolerance
        Samples that the inserts so far allow beyond those taken, and how far it may be from 0.
    can_insert
        Whether another sequence may come in.
    """

    size: int
    min_size: int
    balance: float
    tolerance: float
    can_insert: bool

    def __str__(self) -> str:
        if self.size < self.min_size:
            return f"the replay holds {self.size} of the {self.min_size} sequences needed (replay.min_size)"
        side = "inserting waits for samples" if not self.can_insert else "sampling may have to wait"
        return (
            f"the replay holds {self.size} sequences; {self.balance:g} samples are due, within "
            f"{self.tolerance:g} either way (replay.samples_per_insert, replay.tolerance): {side}"
        )


class Limiter:
    """Holds samples per insert within a band.

    `balance` counts the samples that inserts allow and that were not taken yet: an insert past the
    minimum size adds `ratio`, a sampled sequence takes 1. Inserting pauses where the balance would
    exceed the tolerance, sampling where it would fall below its negative.

    Invariant: never do both pause. Below the minimum size inserting never pauses; from there on a batch
    may be sampled whenever inserting pauses, however large it is and however narrow the band.

    Parameters
    ----------
    min_size
        Sequences held before the first is sampled.
    ratio
        Sequences sampled for each one inserted.
    tolerance
        Of the balance, either way.
    """

    def __init__(self, min_size: int, ratio: float, tolerance: float) -> None:
        self.min_size, self.ratio, self.tolerance = min_size, ratio, tolerance
        self.balance = 0.0

    def can_insert(self, size: int) -> bool:
        """Whether a sequence may be inserted into a replay that holds `size`."""
        return size < self.min_size or self.balance + self.ratio <= self.tolerance

    def can_sample(self, size: int, batch: int) -> bool:
        """Whether `batch` sequences may be sampled from a replay that holds `size`."""
        if size < self.min_size:
            return False
        return self.balance - batch >= -self.tolerance or not self.can_insert(size)

    def inserted(self, size: int) -> None:
        """Count a sequence that was inserted into a replay that held `size`."""
        if size >= self.min_size:
            self.balance += self.ratio

    def sampled(self, batch: int) -> None:
        """Count sequences that were sampled."""
        self.balance -= batch

    def status(self, size: int) -> LimiterStatus:
        """The state in numbers and words."""
        return LimiterStatus(size, self.min_size, self.balance, self.tolerance, self.can_insert(size))

    def to_json(self) -> dict[str, Any]:
        return {"balance": self.balance, "ratio": self.ratio, "tolerance": self.tolerance}

    def restore(self, untrusted: Any) -> None:
        """Go on from what `to_json` wrote, without making up for a time under other settings.

        With the same ratio and tolerance the balance is what it was. With others it is brought into
        the band, so that neither side has more to catch up with than the tolerance.

        Raises
        ------
        CheckpointError
            When it is anything else.
        """
        try:
            balance, *settings = (float(untrusted[name]) for name in ("balance", "ratio", "tolerance"))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"this is no state of a limiter: {untrusted!r}") from error
        if not math.isfinite(balance):
            raise CheckpointError(f"the limiter's balance is {balance}: expected a finite number")
        if settings != [self.ratio, self.tolerance]:
            balance = min(max(balance, -self.tolerance), self.tolerance)
        self.balance = balance

"""Which part of a run holds the others up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Bottleneck = Literal["environments", "inference", "training"]

IDLE = "share/inference_idle"
STARVED = "share/inference_starved"

STARVED_AT = 0.1
"""Share of the time without a free unroll slot from which training is called the bottleneck."""
IDLE_AT = 0.25
"""Share of the time without a request from which the environments are called the bottleneck."""


def bottleneck(values: Mapping[str, float]) -> Bottleneck | None:
    """Name the slowest part, or None where nothing is known yet.

    Everything meets in the inference loop. Where it runs out of unroll slots, training does not take
    them fast enough. Where it waits for requests, the environments do not step fast enough. Otherwise it is
    the loop itself that is busy all the time.

    Parameters
    ----------
    values
        A snapshot of the run's metrics.

    Examples
    --------
    >>> bottleneck({"share/inference_idle": 0.6, "share/inference_starved": 0.0})
    'environments'
    """
    if IDLE not in values:
        return None
    if values.get(STARVED, 0.0) >= STARVED_AT:
        return "training"
    return "environments" if values[IDLE] >= IDLE_AT else "inference"

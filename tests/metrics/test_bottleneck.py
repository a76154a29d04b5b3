"""The part that holds the others up."""

from __future__ import annotations

import pytest

from seedflow.metrics.bottleneck import bottleneck


@pytest.mark.parametrize(
    ("idle", "starved", "named"),
    [
        (0.02, 0.0, "inference"),
        (0.6, 0.0, "environments"),
        (0.0, 0.5, "training"),
        (0.5, 0.4, "training"),  # what rings while nothing is free is answered in bursts
    ],
)
def test_it_is_named_by_what_inference_waits_for(idle: float, starved: float, named: str) -> None:
    assert bottleneck({"share/inference_idle": idle, "share/inference_starved": starved}) == named


def test_it_is_unknown_before_the_second_snapshot() -> None:
    assert bottleneck({"inference/idle_seconds": 3.0}) is None

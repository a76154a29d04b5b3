"""Samples per insert, event by event."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.errors import CheckpointError
from seedflow.replay.limiter import Limiter


def test_below_the_minimum_inserting_is_free_and_sampling_waits() -> None:
    limiter = Limiter(min_size=3, ratio=4.0, tolerance=8.0)
    for size in range(3):
        assert limiter.can_insert(size)
        assert not limiter.can_sample(size, 1)
        limiter.inserted(size)
    assert limiter.balance == 0.0
    assert "holds 2 of the 3 sequences needed (replay.min_size)" in str(limiter.status(2))


def test_past_the_minimum_both_stay_within_the_band() -> None:
    limiter = Limiter(min_size=1, ratio=4.0, tolerance=8.0)
    limiter.inserted(1)
    limiter.inserted(1)
    assert not limiter.can_insert(3)
    assert "8 samples are due, within 8 either way" in str(limiter.status(3))
    assert "inserting waits" in str(limiter.status(3))
    for _ in range(4):
        assert limiter.can_sample(3, 4)
        limiter.sampled(4)
    assert (limiter.balance, limiter.can_sample(3, 4), limiter.can_sample(3, 1)) == (-8.0, False, False)
    assert limiter.can_insert(3)


def test_a_batch_larger_than_the_band_is_sampled_when_inserting_waits() -> None:
    limiter = Limiter(min_size=1, ratio=1.0, tolerance=2.0)
    assert not limiter.can_sample(1, 64)
    limiter.inserted(1)
    limiter.inserted(2)
    assert limiter.can_sample(3, 64)
    assert not limiter.can_insert(3)


@settings(max_examples=200)
@given(
    ratio=st.floats(1e-3, 1e3),
    tolerance=st.floats(1e-6, 1e6),
    batches=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    choices=st.lists(st.booleans(), max_size=200),
)
def test_both_sides_never_pause_and_the_ratio_holds(
    ratio: float, tolerance: float, batches: list[int], choices: list[bool]
) -> None:
    limiter = Limiter(min_size=2, ratio=ratio, tolerance=tolerance)
    size = inserted = sampled = 0
    for number, insert in enumerate(choices):
        batch = batches[number % len(batches)]
        may_insert, may_sample = limiter.can_insert(size), limiter.can_sample(size, batch)
        assert may_insert or may_sample
        if may_insert and (insert or not may_sample):
            limiter.inserted(size)
            inserted += size >= 2
            size = min(size + 1, 5)
        else:
            limiter.sampled(batch)
            sampled += batch
    assert limiter.balance == pytest.approx(ratio * inserted - sampled, rel=1e-9, abs=1e-6)
    assert -max(tolerance, max(batches) + ratio - tolerance) <= limiter.balance + 1e-6
    assert limiter.balance <= tolerance + 1e-6


def restored(limiter: Limiter, **settings: float) -> Limiter:
    again = Limiter(**{"min_size": 2, "ratio": 2.0, "tolerance": 10.0, **settings})
    again.restore(limiter.to_json())
    return again


def test_it_goes_on_where_it_was() -> None:
    limiter = Limiter(min_size=2, ratio=2.0, tolerance=10.0)
    for _ in range(4):
        limiter.inserted(2)
    assert restored(limiter).balance == 8.0
    assert restored(limiter, min_size=100).balance == 8.0


def test_under_other_settings_there_is_no_burst() -> None:
    limiter = Limiter(min_size=2, ratio=2.0, tolerance=10.0)
    for _ in range(4):
        limiter.inserted(2)
    assert restored(limiter, tolerance=3.0).balance == 3.0
    assert restored(limiter, ratio=50.0).balance == 8.0
    limiter.sampled(1000)
    assert restored(limiter).balance == -992.0
    assert restored(limiter, ratio=1.0).balance == -10.0


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {},
        {"balance": "x", "ratio": 1, "tolerance": 1},
        {"balance": math.nan, "ratio": 1, "tolerance": 1},
    ],
)
def test_a_state_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match="limiter"):
        Limiter(1, 1.0, 1.0).restore(value)

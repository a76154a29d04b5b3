"""The budget of an actor that looks for its learner."""

from __future__ import annotations

import pytest

from seedflow.actor.patience import FIRST_PAUSE, LONGEST_PAUSE, Patience


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_the_time_spent_searching_counts() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    clock.now += 50
    assert patience.left() == 10
    patience.search()
    clock.now += 4
    assert patience.left() == 6
    patience.found()
    clock.now += 1000
    assert patience.left() == 6
    patience.search()
    clock.now += 7
    assert patience.left() == -1


def test_progress_renews_the_budget() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    patience.search()
    clock.now += 9
    patience.found()
    patience.progress()
    assert patience.left() == 10
    assert patience.pause() == 0


def test_leases_lost_at_once_again_and_again_use_the_budget_up() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    rounds = 0
    while patience.left() > 0:
        patience.search()
        clock.now += patience.pause()
        patience.found()
        rounds += 1
        assert rounds < 50
    assert rounds > 5


def test_pauses_begin_at_nothing_and_grow_to_a_bound() -> None:
    patience = Patience(10.0)
    pauses = [patience.pause() for _ in range(2000)]
    assert pauses[0] == 0
    assert FIRST_PAUSE / 2 <= pauses[1] <= FIRST_PAUSE
    assert all(LONGEST_PAUSE / 2 <= pause <= LONGEST_PAUSE for pause in pauses[10:])
    assert pauses[10] != pytest.approx(pauses[11], abs=1e-9)

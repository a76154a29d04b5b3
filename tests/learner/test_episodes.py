from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.learner.episodes import EpisodeStatistics


def feed(statistics: EpisodeStatistics, row: int, *steps: tuple[float, bool]) -> list[tuple[float, int]]:
    """Feed one row step by step as (reward, first); return the episodes that closed."""
    closed = []
    for reward, first in steps:
        returns, lengths = statistics.update([row], [reward], [first], [0 if first else 1])
        closed += list(zip(returns.tolist(), lengths.tolist(), strict=True))
    return closed


FIRST = (0.0, True)


def test_an_episode_of_three_steps_has_return_and_length_three_every_time() -> None:
    episode = [FIRST, (1.0, False), (1.0, False), (1.0, False)]
    closed = feed(EpisodeStatistics(1), 0, *(episode * 20), FIRST)
    assert closed == [(3.0, 3)] * 20


def test_an_episode_closes_when_the_next_one_begins() -> None:
    statistics = EpisodeStatistics(2)
    assert feed(statistics, 1, FIRST, (2.0, False), (-0.5, False)) == []
    assert feed(statistics, 1, FIRST) == [(1.5, 2)]


def test_an_episode_whose_beginning_was_not_seen_does_not_count() -> None:
    closed = feed(EpisodeStatistics(1), 0, (5.0, False), (5.0, False), FIRST, (1.0, False), FIRST)
    assert closed == [(1.0, 1)]


def test_dropped_rows_forget_their_episode_and_others_keep_theirs() -> None:
    statistics = EpisodeStatistics(3)
    for row in range(3):
        feed(statistics, row, FIRST, (1.0, False))
    statistics.drop([0, 2])
    assert feed(statistics, 0, FIRST, (4.0, False), FIRST) == [(4.0, 1)]
    assert feed(statistics, 1, (1.0, False), FIRST) == [(2.0, 2)]
    assert feed(statistics, 2, (9.0, False), FIRST) == []


def test_a_reset_after_a_reset_is_no_episode() -> None:
    assert feed(EpisodeStatistics(1), 0, FIRST, FIRST, (1.0, False), FIRST) == [(1.0, 1)]


def test_the_reward_of_a_reset_row_belongs_to_nothing() -> None:
    assert feed(EpisodeStatistics(1), 0, (7.0, True), (1.0, False), (7.0, True)) == [(1.0, 1)]


def test_reset_rows_count_neither_as_steps_nor_as_frames() -> None:
    statistics = EpisodeStatistics(3)
    statistics.update([0, 1, 2], np.zeros(3), [True, True, True], [0, 0, 0])
    statistics.update([2, 0], np.zeros(2), [False, False], np.array([4, 4], np.int32))
    statistics.update([1, 2], np.zeros(2), [False, True], [2, 99])
    assert (statistics.steps, statistics.frames) == (3, 10)


def test_small_rewards_add_up_without_loss() -> None:
    statistics = EpisodeStatistics(1)
    reward, first, frames = np.array([0.1], np.float32), np.array([False]), np.array([1], np.int32)
    feed(statistics, 0, FIRST)
    for _ in range(20_000):
        statistics.update([0], reward, first, frames)
    returns, lengths = statistics.update([0], [0.0], [True], [0])
    assert returns[0] == pytest.approx(20_000 * float(np.float32(0.1)), rel=1e-12)
    assert lengths[0] == 20_000


def test_arrays_of_different_length_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"reward has shape \(1,\): expected \(2,\)"):
        EpisodeStatistics(4).update([0, 1], [1.0], [False, False], [1, 1])


@dataclass
class Row:
    """The definition, one row at a time."""

    episode: list[float] | None = None
    closed: list[tuple[float, int]] = field(default_factory=list)

    def step(self, reward: float, first: bool) -> None:
        if first:
            if self.episode:
                self.closed.append((sum(self.episode), len(self.episode)))
            self.episode = []
        elif self.episode is not None:
            self.episode.append(reward)


STEP = st.fixed_dictionaries(
    {"rows": st.sets(st.integers(0, 4), min_size=1), "first": st.lists(st.booleans(), min_size=5, max_size=5)}
)


@given(st.lists(STEP, max_size=40))
def test_any_interleaving_of_rows_agrees_with_the_definition(steps: list[dict]) -> None:
    statistics, expected = EpisodeStatistics(5), [Row() for _ in range(5)]
    actual: list[list[tuple[float, int]]] = [[] for _ in range(5)]
    for t, step in enumerate(steps):
        rows = np.array(sorted(step["rows"]))
        first = np.array(step["first"])[rows]
        reward = (t + rows).astype(np.float32)
        returns, lengths = statistics.update(rows, reward, first, np.where(first, 0, 4))
        closing = []
        for row, r, f in zip(rows, reward, first, strict=True):
            before = len(expected[row].closed)
            expected[row].step(float(r), bool(f))
            closing += [row] * (len(expected[row].closed) - before)
        for row, *episode in zip(closing, returns.tolist(), lengths.tolist(), strict=True):
            actual[row].append(tuple(episode))
    assert actual == [row.closed for row in expected]

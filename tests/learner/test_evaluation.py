"""Evaluation rounds count whole episodes, a fixed number from each environment."""

import numpy as np

from seedflow.learner.evaluation import EvaluationRounds


def play(rounds: EvaluationRounds, lengths: list[int], steps: int) -> list[tuple[float, int]] | None:
    """Environments with fixed episode lengths and reward 1 a step; stops when a round is complete."""
    rows = np.arange(len(lengths))
    for step in range(steps):
        first = np.array([step % (length + 1) == 0 for length in lengths])
        rounds.record(rows, first, (~first).astype(np.float32))
        result = rounds.result_if_complete()
        if result is not None:
            return [tuple(episode) for episode in result]
    return None


def test_each_environment_contributes_its_share_however_long_its_episodes() -> None:
    rounds = EvaluationRounds(every=100, episodes=5, rows=2)
    rounds.open_if_due(0, 0, np.arange(2))
    episodes = play(rounds, lengths=[2, 9], steps=100)
    assert episodes is not None
    assert sorted(episodes) == [(2.0, 2)] * 3 + [(9.0, 9)] * 2


def test_an_episode_that_began_before_the_round_does_not_count() -> None:
    rounds = EvaluationRounds(every=100, episodes=1, rows=1)
    rows = np.arange(1)
    rounds.open_if_due(0, 0, rows)
    rounds.record(rows, np.array([False]), np.ones(1, np.float32))  # in the middle of an episode
    assert play(rounds, lengths=[3], steps=10) == [(3.0, 3)]


def test_rounds_open_when_due_and_not_before() -> None:
    rounds = EvaluationRounds(every=1000, episodes=1, rows=1)
    rows = np.arange(1)
    assert rounds.open_if_due(999, 1000, rows) == 1000
    assert not rounds.open
    assert rounds.open_if_due(2345, 1000, np.zeros(0, np.int64)) == 1000
    assert not rounds.open
    assert rounds.open_if_due(2345, 1000, rows) == 3000
    assert rounds.open


def test_a_round_that_loses_environments_is_broken_off_and_held_again() -> None:
    rounds = EvaluationRounds(every=1000, episodes=2, rows=2)
    due = rounds.open_if_due(0, 0, np.arange(2))
    rounds.record(np.arange(2), np.array([True, True]), np.zeros(2, np.float32))
    rounds.record(np.arange(2), np.array([True, False]), np.ones(2, np.float32))
    rounds.forget(np.arange(2))
    assert not rounds.open
    assert rounds.open_if_due(10, due, np.zeros(0, np.int64)) == due
    assert rounds.open_if_due(20, due, np.arange(2)) == due
    assert rounds.open
    assert play(rounds, lengths=[4, 4], steps=20) == [(4.0, 4)] * 2


def test_a_lost_environment_that_has_played_its_share_breaks_nothing_off() -> None:
    rounds = EvaluationRounds(every=10, episodes=1, rows=2)
    rounds.open_if_due(0, 0, np.arange(2))
    rounds.forget(np.array([1]))
    assert play(rounds, lengths=[4, 4], steps=20) == [(4.0, 4)]

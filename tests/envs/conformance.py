"""What every `GroupEnv` must do, as classes that the tests of each back end inherit.

A back end's test class says how to make its group; the inherited tests do the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from seedflow.envs import GroupEnv, allocate_rows, env_seed

FIELDS = {"reward": "float32", "terminated": "bool", "truncated": "bool", "first": "bool", "frames": "int32"}

History = dict[str, np.ndarray]
"""Rows over time by field, each ``[T, E, ...]``."""


def seeds(num_envs: int, run_seed: int = 1, incarnation: int = 0) -> list[np.random.SeedSequence]:
    """Seeds as an actor gives them to its first environments."""
    return [env_seed(run_seed, "actor", i, incarnation) for i in range(num_envs)]


def record(group: GroupEnv, steps: int, action_seed: int = 0) -> History:
    """Reset a group, step it with random actions, and stack all rows."""
    rng = np.random.default_rng(action_seed)
    rows = allocate_rows(group.spec, group.num_envs)
    group.reset(rows)
    history = [{name: array.copy() for name, array in rows.items()}]
    for _ in range(steps):
        for array in rows.values():
            array.view(np.uint8)[...] = 1  # whatever is not written will show
        group.step(rng.integers(group.spec.num_actions, size=group.num_envs), rows)
        history.append({name: array.copy() for name, array in rows.items()})
    return {name: np.stack([row[name] for row in history]) for name in history[0]}


def episodes(history: History) -> list[tuple[float, int, int]]:
    """(return, transitions, frames) of every episode that a history holds completely, by environment."""
    done = []
    for i in range(history["first"].shape[1]):
        starts = np.flatnonzero(history["first"][:, i])
        for begin, end in itertools.pairwise(starts):
            total = float(history["reward"][begin:end, i].sum())
            done.append((total, int(end - begin - 1), int(history["frames"][begin:end, i].sum())))
    return done


def assert_equal_histories(left: History, right: History) -> None:
    """Every field of two histories is the same, bit by bit."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


class GroupConformance:
    """Rows, episode ends and seeds of any back end.

    Set `steps` so that several episodes end within them.
    """

    num_envs = 3
    steps = 40
    loses_lives = False
    """Whether ``terminated`` may come without a new episode."""

    def make(self, seeds: Sequence[np.random.SeedSequence]) -> GroupEnv:
        raise NotImplementedError

    def history(self, steps: int | None = None, action_seed: int = 0, **seed_of: Any) -> History:
        with self.make(seeds(self.num_envs, **seed_of)) as group:
            return record(group, steps or self.steps, action_seed)

    def test_rows_have_the_fields_shapes_and_dtypes_of_the_contract(self):
        with self.make(seeds(self.num_envs)) as group:
            assert group.num_envs == self.num_envs
            rows = allocate_rows(group.spec, group.num_envs)
            group.reset(rows)
            group.step(np.zeros(self.num_envs, np.int64), rows)
        for leaf in group.spec.observation:
            assert rows[leaf.name].shape == (self.num_envs, *leaf.shape)
            assert rows[leaf.name].dtype == leaf.dtype
        assert {name: rows[name].dtype.name for name in FIELDS} == FIELDS

    def test_a_reset_begins_an_episode_everywhere(self):
        with self.make(seeds(self.num_envs)) as group:
            rows = allocate_rows(group.spec, group.num_envs)
            for name in FIELDS:
                rows[name][...] = 1
            group.reset(rows)
        assert rows["first"].all()
        for name in ("reward", "terminated", "truncated", "frames"):
            assert not rows[name].any(), name

    def test_the_row_after_an_episode_end_is_first_and_no_transition(self):
        history = self.history()
        ended = history["terminated"] | history["truncated"]
        first = history["first"]
        assert ended.any()
        assert not (ended & first).any()
        if not self.loses_lives:
            np.testing.assert_array_equal(first[1:], ended[:-1])
        assert not (first[1:] & ~ended[:-1]).any()
        assert not history["reward"][first].any()
        assert not history["frames"][first].any()
        assert (history["frames"][~first] > 0).all()

    def test_equal_seeds_repeat_and_a_new_incarnation_does_not(self):
        once = self.history()
        assert_equal_histories(once, self.history())
        again = self.history(incarnation=1)
        assert any((once[name] != again[name]).any() for name in once if name.startswith("observation"))
        other = self.history(run_seed=2)
        assert any((once[name] != other[name]).any() for name in once if name.startswith("observation"))

    def test_environments_of_a_group_differ(self):
        history = self.history()
        leaves = [name for name in history if name.startswith("observation")]
        for i in range(1, self.num_envs):
            assert any((history[name][:, 0] != history[name][:, i]).any() for name in leaves)

    def test_a_second_reset_does_not_replay_the_first_episodes(self):
        with self.make(seeds(self.num_envs)) as group:
            first, second = record(group, self.steps), record(group, self.steps)
        assert second["first"][0].all()
        assert any((first[name] != second[name]).any() for name in first if name.startswith("observation"))

    def test_rows_may_be_strided_views_of_shared_memory(self):
        expected = self.history(5, action_seed=3)
        with self.make(seeds(self.num_envs)) as group:
            wide = allocate_rows(group.spec, 2 * self.num_envs)
            rows = {name: array[1::2] for name, array in wide.items()}
            rng = np.random.default_rng(3)
            group.reset(rows)
            for _ in range(5):
                group.step(rng.integers(group.spec.num_actions, size=self.num_envs), rows)
        for name, array in rows.items():
            np.testing.assert_array_equal(array, expected[name][-1], err_msg=name)

    def test_closing_twice_is_allowed(self):
        group = self.make(seeds(self.num_envs))
        group.close()
        group.close()


class ThreeStepConformance(GroupConformance):
    """Episode accounting of back ends that can hold the task of three transitions."""

    ending = "terminated"

    def test_every_episode_has_return_three_and_length_three(self):
        history = self.history(steps=4 * 20)
        done = episodes(history)
        assert len(done) == 20 * self.num_envs
        assert set(done) == {(3.0, 3, 3)}

    def test_rows_of_the_three_step_task_in_full(self):
        history = self.history(steps=8)
        for name, period in {
            "first": [True, False, False, False],
            "reward": [0, 1, 1, 1],
            "frames": [0, 1, 1, 1],
            self.ending: [False, False, False, True],
            "truncated" if self.ending == "terminated" else "terminated": [False] * 4,
        }.items():
            expected = np.tile(np.tile(period, 3)[:9, None], (1, self.num_envs))
            np.testing.assert_array_equal(history[name], expected, err_msg=name)

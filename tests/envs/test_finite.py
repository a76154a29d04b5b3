"""NaN and infinity: an error that says where, or zero and a count."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seedflow.config import EnvConfig
from seedflow.envs import GroupEnv, allocate_rows, env_seed, make_group
from seedflow.envs.base import Rows, write_first_flags
from seedflow.envs.finite import FiniteGroup
from seedflow.errors import EnvironmentFault
from seedflow.specs import ArraySpec, EnvSpec

SPEC = EnvSpec(
    (
        ArraySpec("observation/image", (2, 2), np.dtype(np.uint8)),
        ArraySpec("observation/speed", (3,), np.dtype(np.float32)),
    ),
    num_actions=2,
)


class Prepared(GroupEnv):
    """Writes speeds and rewards that a test has prepared, row 0 for the reset."""

    def __init__(self, speeds: np.ndarray, rewards: np.ndarray) -> None:
        self.spec, self.num_envs = SPEC, speeds.shape[1]
        self._speeds, self._rewards = iter(speeds), iter(rewards)

    def reset(self, rows: Rows) -> None:
        self.step(np.zeros(0, np.int64), rows)
        write_first_flags(rows)

    def step(self, actions: Any, rows: Rows) -> None:
        rows["observation/image"][...] = 255
        rows["observation/speed"][...] = next(self._speeds)
        rows["reward"][...] = next(self._rewards)

    def close(self) -> None:
        """Nothing is held."""


def walk(group: GroupEnv, steps: int) -> list[dict[str, np.ndarray]]:
    rows = allocate_rows(group.spec, group.num_envs)
    history = []
    for t in range(steps):
        rows["masked"][...] = 7  # whatever is not written will show
        if t == 0:
            group.reset(rows)
        else:
            group.step(np.zeros(group.num_envs, np.int64), rows)
        history.append({name: array.copy() for name, array in rows.items()})
    return history


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "step"), [("observation/speed", 0), ("observation/speed", 2), ("reward", 2)]
)
def test_an_error_names_environment_step_and_array(name: str, step: int, value: float) -> None:
    speeds, rewards = np.zeros((3, 4, 3), np.float32), np.zeros((3, 4), np.float32)
    if name == "reward":
        rewards[step, 1] = value
    else:
        speeds[step, 1, 2] = value
    group = FiniteGroup(Prepared(speeds, rewards), "error", range(40, 44), "env.id = 'X-v0'")
    where = rf"X-v0': {name} of environment 41 is {value} at step {step} .*env\.on_nonfinite=mask"
    with pytest.raises(EnvironmentFault, match=where) as raised:
        walk(group, 3)
    assert raised.value.identity == f"{name} of env.id = 'X-v0' is not finite"


def numbers(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    finite = st.floats(-100, 100, width=32)
    return hnp.arrays(np.float32, shape, elements=finite | st.sampled_from([np.nan, np.inf, -np.inf]))


@given(numbers((3, 2, 3)), numbers((3, 2)))
def test_masked_numbers_are_zero_and_counted_and_others_stay(speeds: np.ndarray, rewards: np.ndarray) -> None:
    rewards[0] = 0.0
    group = FiniteGroup(Prepared(speeds, rewards), "mask", range(2), "X")
    for t, rows in enumerate(walk(group, 3)):
        for name, sent in (("observation/speed", speeds[t]), ("reward", rewards[t])):
            np.testing.assert_array_equal(rows[name], np.where(np.isfinite(sent), sent, 0.0))
        wrong = (~np.isfinite(speeds[t])).sum(axis=1) + ~np.isfinite(rewards[t])
        np.testing.assert_array_equal(rows["masked"], wrong)
        assert (rows["observation/image"] == 255).all()


def test_the_first_masked_number_is_logged_and_the_others_are_not(caplog: pytest.LogCaptureFixture) -> None:
    speeds = np.full((3, 2, 3), np.nan, np.float32)
    with caplog.at_level(logging.WARNING):
        walk(FiniteGroup(Prepared(speeds, np.zeros((3, 2))), "mask", (8, 9), "X"), 3)
    (line,) = caplog.messages
    assert line == "X: observation/speed of environment 8 is nan at step 0 and was replaced by 0 " + (
        "(env.on_nonfinite = mask)"
    )


class Diverging(gym.Env[Any, Any]):
    """Its speed is infinite from the third step on."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, np.inf if self.t >= 3 else 1.0, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("policy", ["error", "mask"])
def test_the_setting_decides_and_ids_are_those_of_the_seeds(policy: str) -> None:
    config = EnvConfig(on_nonfinite=policy)
    seeds = [env_seed(1, "actor", env_id, 0) for env_id in (16, 17)]
    with make_group(config, 2, seeds, env_fn=Diverging) as group:
        if policy == "error":
            with pytest.raises(EnvironmentFault, match="observation of environment 16 is inf at step 3"):
                walk(group, 5)
        else:
            history = walk(group, 5)
            assert [rows["masked"].tolist() for rows in history] == [[0, 0]] * 3 + [[1, 1]] * 2
            assert history[-1]["observation"].tolist() == [[0.0], [0.0]]

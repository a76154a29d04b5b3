"""Which environment of a group is at work, and which one failed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from seedflow.config import EnvConfig
from seedflow.envs import allocate_rows, env_seed, make_group
from seedflow.envs.numbered import NOBODY
from seedflow.errors import EnvironmentFault

SEEDS = [env_seed(1, "actor", env_id, 0) for env_id in range(20, 24)]


def failing(place: str, number: int) -> Any:
    """Maker of environments of which the `number`-th raises."""
    made = iter(range(len(SEEDS)))

    class Failing(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.number = next(made)
            self.fail("__init__")

        def fail(self, here: str) -> None:
            if (here, self.number) == (place, number):
                raise KeyError("no such level")

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.fail("reset")
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.fail("step")
            return np.zeros(1, np.float32), 1.0, False, False, {}

    return Failing


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("place", ["__init__", "reset", "step"])
def test_what_one_environment_raises_says_which_one_and_where(place: str, number: int) -> None:
    position = np.full(1, NOBODY, np.int32)
    error: BaseException
    if place == "__init__":
        with pytest.raises(EnvironmentFault, match="no such level") as raised:
            make_group(EnvConfig(), 4, SEEDS, env_fn=failing(place, number), position=position)
        assert raised.value.__cause__ is not None
        error = raised.value.__cause__
    else:
        with make_group(EnvConfig(), 4, SEEDS, env_fn=failing(place, number), position=position) as group:
            rows = allocate_rows(group.spec, 4)
            with pytest.raises(KeyError) as caught:  # noqa: PT012 - either call may raise
                group.reset(rows)
                group.step(np.zeros(4, np.int64), rows)
        error = caught.value
    assert error.__notes__ == [f"in {place} of environment {20 + number}"]
    assert position[0] == 20 + number


def test_environments_that_are_stepped_as_one_have_no_number() -> None:
    position = np.full(1, NOBODY, np.int32)
    with make_group(EnvConfig(id="CartPole-v1"), 4, SEEDS, position=position) as group:
        group.reset(allocate_rows(group.spec, 4))
    assert position[0] == NOBODY

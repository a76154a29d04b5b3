"""A task of exactly three transitions, as a single environment and as vector environments of every kind.

The observation is ``[episode's random start, transitions since]``; each transition pays 1.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

SPACE = gym.spaces.Box(-1, 1_000_000, (2,), np.float32)
LENGTH = 3


class ThreeStep(gym.Env):
    """The single environment. Stepping past the end is an error."""

    observation_space = SPACE
    action_space = gym.spaces.Discrete(2)

    def __init__(self, ending: str = "terminated", reward: Any = 1.0) -> None:
        self.ending = ending
        self.reward = reward
        self.steps = LENGTH

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = int(self.np_random.integers(1_000_000))
        self.steps = 0
        return self._observation(), {}

    def step(self, action):
        if self.steps >= LENGTH:
            raise AssertionError("stepped past the end of an episode")
        assert self.action_space.contains(action)
        self.steps += 1
        ended = self.steps == LENGTH
        return (
            self._observation(),
            self.reward,
            ended and self.ending == "terminated",
            ended and self.ending == "truncated",
            {},
        )

    def _observation(self):
        return np.array([self.start, self.steps], np.float32)


class ThreeStepVector(VectorEnv):
    """Written by hand as lock-step back ends are: arrays reused, one seed for all, one mode of autoreset."""

    def __init__(
        self, num_envs: int, mode: str = "NextStep", ending: str = "terminated", strict: bool = True
    ):
        self.num_envs = num_envs
        self.mode = AutoresetMode(mode)
        self.metadata = {"autoreset_mode": self.mode}
        self.ending = ending
        self.strict = strict
        self.single_observation_space = SPACE
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(SPACE, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation = np.zeros((num_envs, 2), np.float32)
        self.ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rngs = [np.random.default_rng(seed + i) for i in range(self.num_envs)]
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self._restart(mask)
        return self.observation, {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        resetting = self.ended.copy()
        if self.mode is AutoresetMode.NEXT_STEP:
            self._restart(resetting)
        else:
            assert not resetting.any(), "stepped past the end of an episode"
        self.observation[~resetting, 1] += 1
        ended = self.observation[:, 1] == LENGTH
        self.ended = ended.copy()
        flags = {
            "terminated": np.zeros(self.num_envs, np.bool_),
            "truncated": np.zeros(self.num_envs, np.bool_),
        }
        flags[self.ending] = ended
        reward = np.where(resetting, 0, 1).astype(np.int32)
        return self.observation, reward, flags["terminated"], flags["truncated"], {}

    def _restart(self, mask):
        for i in np.flatnonzero(mask):
            self.observation[i] = self.rngs[i].integers(1_000_000), 0
            self.ended[i] = False


def sync_vector(num_envs: int, mode: str = "NextStep", **kwargs: Any) -> SyncVectorEnv:
    """Gymnasium's own loop over single environments, in a given mode."""
    return SyncVectorEnv([lambda: ThreeStep(**kwargs)] * num_envs, autoreset_mode=AutoresetMode(mode))


def register() -> None:
    """Register the ids of this module with Gymnasium, once."""
    here = "tests.envs.three_step"
    if "seedflow-tests/ThreeStep-v0" not in gym.registry:
        gym.register("seedflow-tests/ThreeStep-v0", entry_point=f"{here}:ThreeStep")
        gym.register(
            "seedflow-tests/ThreeStepVector-v0",
            entry_point=f"{here}:ThreeStep",
            vector_entry_point=f"{here}:ThreeStepVector",
        )
        gym.register("seedflow-tests/ThreeStepSync-v0", vector_entry_point=f"{here}:sync_vector")

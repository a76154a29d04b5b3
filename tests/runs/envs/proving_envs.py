"""``proving_envs:Proving-v0``: environments of which every observation proves where it belongs.

An observation is four integers: a number that names the incarnation of the group (its seed), the place of the
environment in the group, the count of rows since the group was made, and the step of the episode. Rewards
follow from the last. The whole group is stepped by one call.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LENGTH = 7
"""Transitions of every episode."""
RETURN = float(sum(range(1, LENGTH + 1)))


def reward_of(step: Any) -> Any:
    """Reward of the transition into a step of an episode."""
    return np.asarray(step, np.float64)


class ProvingEnvs(VectorEnv[Any, Any, Any]):
    """`num_envs` environments; their first episodes begin at different steps, so that ends are spread."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gym.spaces.Box(0, 2**62, (4,), np.int64)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._name = 0
        self._count = -1
        self._step = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if self._count < 0:
            assert seed is not None
            self._name = seed
        self._count += 1
        self._step[:], self._ended[:] = 0, False
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        self._count += 1
        self._step = np.where(self._ended, 0, self._step + 1)
        self._ended = self._step == LENGTH
        return self._observe(), reward_of(self._step), self._ended, np.zeros(self.num_envs, np.bool_), {}

    def _observe(self) -> Any:
        observation = np.empty((self.num_envs, 4), np.int64)
        observation[:, 0], observation[:, 1] = self._name, np.arange(self.num_envs)
        observation[:, 2], observation[:, 3] = self._count, self._step
        return observation


class ProvingEnv(gym.Env[Any, Any]):
    """One of them alone; what a registered id needs beside its vector entry point."""

    observation_space = gym.spaces.Box(0, 2**62, (4,), np.int64)
    action_space = gym.spaces.Discrete(2)


gym.register(
    "Proving-v0", ProvingEnv, vector_entry_point=ProvingEnvs, disable_env_checker=True, order_enforce=False
)

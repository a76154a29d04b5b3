"""Episodes that can be played again: each has a seed of its own, and its actions are written down."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from seedflow.envs.base import OpenEpisode
from seedflow.envs.seeding import seed_integer


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose every reset has a seed that follows from its own and the number of the episode.

    What it shows then depends on nothing but that seed and the actions since, as far as the environment
    keeps Gymnasium's contract, so that an open episode is described by them.

    Parameters
    ----------
    env
        The environment.
    seed
        Its seed. The seeds that `reset` is given are not used.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: np.random.SeedSequence) -> None:
        super().__init__(env)
        self._seed = seed
        self._number = -1
        self._actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._number += 1
        self._actions = []
        return self.env.reset(seed=self._episode_seed(), options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._actions.append(int(action))
        return self.env.step(action)

    def open_episode(self, ended: bool) -> OpenEpisode:
        """The episode that is under way."""
        return OpenEpisode(self._number, tuple(self._actions), ended)

    def reopen(self, episode: OpenEpisode) -> dict[str, Any]:
        """Play an episode again; returns the last ``info``."""
        self._number, self._actions = episode.number, list(episode.actions)
        _, info = self.env.reset(seed=self._episode_seed())
        for action in episode.actions:
            *_, info = self.env.step(action)
        return info

    def _episode_seed(self) -> int:
        key = (*self._seed.spawn_key, self._number)
        return seed_integer(np.random.SeedSequence(self._seed.entropy, spawn_key=key))

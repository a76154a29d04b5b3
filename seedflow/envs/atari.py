"""Atari 2600 games (ids ``ALE/...``) through ale-py's own vector environment.

Preprocessing follows SEED RL (Espeholt et al. 2019, arXiv 1910.06591) rather than the library's
defaults: frames are grey and 84 x 84, the maximum of the last two of 4 skipped ones; actions are not
sticky; an episode begins with up to 30 no-ops and is truncated after 108,000 frames; rewards are not
clipped, no fire button is pressed for the agent, and a lost life is no end. A row shows the newest frame
only, shape ``(84, 84)``: stacking is the network's affair. Each is overridden by ``env.kwargs`` under
the name that ale-py's ``AtariVectorEnv`` gives it.

What ale-py 0.12 does was checked, where its documentation is silent:

- ``frame_number`` counts on over automatic resets (a reset with seeds begins at 0),
  ``episode_frame_number`` starts anew; both include the no-ops of a reset. Their difference is the
  frame at which the episode began, which changes exactly at an automatic reset. A transition that ends
  an episode takes fewer frames than the skip.
- ``noop_max`` = n draws 0 to n - 1 no-ops; one more is passed on here, so that n are the most.
- ``max_num_frames_per_episode`` does not count the no-ops.
- ``life_loss_info`` sets ``terminated`` at a lost life without a reset: rows then have ``terminated``
  and no ``first`` after it. ``episodic_life`` starts a whole new game instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from seedflow.envs.base import GroupEnv, Rows, write_first_flags
from seedflow.envs.names import did_you_mean
from seedflow.envs.seeding import seed_integer
from seedflow.errors import ConfigError
from seedflow.specs import EnvSpec

ATARI_PREFIX = "ALE/"

SEED_DEFAULTS: dict[str, Any] = {
    "num_threads": 1,  # one actor, one core
    "max_num_frames_per_episode": 108_000,
    "repeat_action_probability": 0.0,
    "stack_num": 1,
    "frameskip": 4,
    "noop_max": 30,
    "episodic_life": False,
    "life_loss_info": False,
    "reward_clipping": False,
    "use_fire_reset": False,
}

# What seedflow decides itself, with the reason.
_FIXED = {
    "game": "it follows from env.id",
    "num_envs": "set actor.envs_per_group",
    "batch_size": "a group is stepped as a whole",
    "autoreset_mode": "rows mean NEXT_STEP",
}

# Settings of the vector environment that a single preprocessed environment has too, by where they go.
_TO_MAKE = ("max_num_frames_per_episode", "repeat_action_probability", "full_action_space")
_TO_PREPROCESSING = {
    "frameskip": "frame_skip",
    "noop_max": "noop_max",
    "grayscale": "grayscale_obs",
    "episodic_life": "terminal_on_life_loss",
}


def load_ale(env_id: str) -> Any:
    """Import ale-py and register its ids with Gymnasium.

    Raises
    ------
    ConfigError
        It is not installed; the message holds the command that installs it.
    """
    try:
        import ale_py
    except ImportError as error:
        raise ConfigError(
            f"env.id = {env_id!r} needs ale-py, which cannot be imported ({error}): "
            'pip install "seedflow[atari]"'
        ) from error
    gym.register_envs(ale_py)
    return ale_py


class AtariGroup(GroupEnv):
    """E games in one `AtariVectorEnv`.

    Parameters
    ----------
    env_id
        A Gymnasium id of ale-py such as ``ALE/Pong-v5``.
    kwargs
        Settings of `AtariVectorEnv` that replace the defaults of this module.
    seeds
        One per environment.

    Raises
    ------
    ConfigError
        ale-py is missing or does not know the game; a setting is unknown or not the user's to set.
    SpecError
        A setting asks for actions that are not discrete.
    """

    def __init__(self, env_id: str, kwargs: dict[str, Any], seeds: Sequence[np.random.SeedSequence]) -> None:
        load_ale(env_id)
        from ale_py.vector_env import AtariVectorEnv

        game = _game_of(env_id)
        known = set(inspect.signature(AtariVectorEnv).parameters) - set(_FIXED)
        _check_kwargs(env_id, kwargs, known)
        settings = {**SEED_DEFAULTS, **kwargs}
        if settings["noop_max"] > 0:
            settings["noop_max"] += 1
        self._env = AtariVectorEnv(game=game, num_envs=len(seeds), **settings)
        self._seeds = tuple(seeds)
        self._resets = 0
        self.num_envs = len(seeds)
        space: Any = self._env.single_observation_space
        self._squeeze = settings["stack_num"] == 1
        if self._squeeze:
            space = gym.spaces.Box(0, 255, space.shape[1:], np.uint8)
        self.spec = EnvSpec.from_spaces(space, self._env.single_action_space)
        self._frame = np.zeros(self.num_envs, np.int64)
        self._episode_start = np.zeros(self.num_envs, np.int64)

    def reset(self, rows: Rows) -> None:
        seeds = np.array([seed_integer(seed, self._resets) for seed in self._seeds], np.int32)
        self._resets += 1
        observation, info = self._env.reset(seed=seeds)
        self._write_observation(observation, rows)
        write_first_flags(rows)
        self._advance(info)

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        observation, reward, terminated, truncated, info = self._env.step(np.asarray(actions, np.int64))
        self._write_observation(observation, rows)
        frames, first = self._advance(info)
        rows["reward"][...] = np.where(first, 0, reward)
        rows["terminated"][...] = terminated & ~first
        rows["truncated"][...] = truncated & ~first
        rows["first"][...] = first
        rows["frames"][...] = np.where(first, 0, frames)

    def close(self) -> None:
        self._env.close()

    def _write_observation(self, observation: NDArray[np.uint8], rows: Rows) -> None:
        rows["observation"][...] = observation[:, 0] if self._squeeze else observation

    def _advance(self, info: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Frames since the last row, and which environments were reset automatically."""
        frame = info["frame_number"].astype(np.int64)
        start = frame - info["episode_frame_number"]
        taken, began = frame - self._frame, start != self._episode_start
        self._frame, self._episode_start = frame, start
        return taken, began


def preprocessed(env_id: str, kwargs: dict[str, Any]) -> Callable[[], gym.Env[Any, Any]]:
    """Maker of a single game with the same preprocessing, for wrappers that need a `gymnasium.Env`.

    Its frames come from Gymnasium's `AtariPreprocessing` (OpenCV): the same sizes and meaning as
    `AtariGroup`, not the same bytes.

    Raises
    ------
    ConfigError
        A setting that only the vector environment has.
    """
    ale_py = load_ale(env_id)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    _game_of(env_id)
    known = {*_TO_MAKE, *_TO_PREPROCESSING, "img_height", "img_width"}
    _check_kwargs(env_id, kwargs, known)
    settings = {**SEED_DEFAULTS, **kwargs}
    make_kwargs = {name: settings[name] for name in _TO_MAKE if name in settings}
    wrap_kwargs = {new: settings[old] for old, new in _TO_PREPROCESSING.items() if old in settings}
    wrap_kwargs["screen_size"] = (settings.get("img_width", 84), settings.get("img_height", 84))

    def make() -> gym.Env[Any, Any]:
        try:
            import cv2
        except ImportError as error:
            raise ConfigError(
                f"env.id = {env_id!r} outside its vector environment needs OpenCV, which cannot be imported "
                f'({error}): pip install "seedflow[atari]"'
            ) from error
        cv2.setNumThreads(1)
        game: gym.Env[Any, Any] = gym.make(env_id, frameskip=1, disable_env_checker=True, **make_kwargs)
        return gym.wrappers.AtariPreprocessing(game, **wrap_kwargs)

    return make


def _game_of(env_id: str) -> str:
    spec = gym.registry.get(env_id)
    if spec is None:
        known = [name for name in gym.registry if name.startswith(ATARI_PREFIX)]
        raise ConfigError(f"env.id = {env_id!r} is not a game of ale-py: {did_you_mean(env_id, known)}")
    return str(spec.kwargs["game"])


def _check_kwargs(env_id: str, kwargs: dict[str, Any], known: set[str]) -> None:
    for name in kwargs:
        if name in _FIXED:
            raise ConfigError(f"env.kwargs.{name} cannot be set for {env_id}: {_FIXED[name]}")
        if name not in known:
            raise ConfigError(
                f"env.kwargs.{name} is no setting of {env_id} here: {did_you_mean(name, known)}"
            )

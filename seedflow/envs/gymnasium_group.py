"""Any Gymnasium environment as a group: the adapter from vector environments to rows.

Gymnasium's vector environments differ in how they begin the next episode. NEXT_STEP is what rows mean
and passes through. DISABLED leaves resets to the caller: the group resets ended environments itself, and
its rows are those of NEXT_STEP. SAME_STEP replaces the last observation of an episode by the first of the
next within one step; the true last observation, from which a truncated episode bootstraps, is then no
ordinary observation any more, so such a back end is refused.

The vector entry point of CartPole in Gymnasium 1.4 was checked against this: it does what NEXT_STEP
says (its truncation counts exactly ``max_episode_steps`` transitions, its reset row has reward 0 and ignores
the action), and draws all environments' starts from one generator that takes one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from numpy.typing import NDArray

from seedflow.envs.base import GroupEnv, OpenEpisode, Rows, write_first_flags
from seedflow.envs.episodes import SeededEpisodes
from seedflow.envs.numbered import Position, numbered
from seedflow.envs.seeding import env_ids_of, joint_seed, seed_integer
from seedflow.errors import EnvironmentFault, SpecError
from seedflow.specs import ArraySpec, EnvSpec, flatten_observation


def autoreset_mode(env: VectorEnv[Any, Any, Any], label: str) -> AutoresetMode:
    """How a vector environment says that it begins the next episode.

    Raises
    ------
    EnvironmentFault
        It does not say, or says SAME_STEP.
    """
    remedy = (
        "set env.vectorization to 'sync' (SyncVectorEnv, which steps one environment after the other), or, "
        "where it takes such an argument, set env.kwargs.autoreset_mode to 'NextStep'"
    )
    name = type(env.unwrapped).__name__
    declared = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(declared)
    except ValueError:
        raise EnvironmentFault(
            f"{label}: its vector environment {name} declares metadata['autoreset_mode'] = {declared!r}; "
            f"expected AutoresetMode.NEXT_STEP or DISABLED; {remedy}"
        ) from None
    if mode is AutoresetMode.SAME_STEP:
        raise EnvironmentFault(
            f"{label}: its vector environment {name} resets in the step that ends an episode "
            "(AutoresetMode.SAME_STEP), which hides the episode's last observation; expected NEXT_STEP or "
            f"DISABLED; {remedy}"
        )
    return mode


class GymnasiumGroup(GroupEnv):
    """A Gymnasium vector environment as a group.

    Parameters
    ----------
    env
        The vector environment; the group closes it.
    seeds
        One per environment. A vector environment with a loop over single ones gets them as a list; any other
        takes one integer, made of all of them.
    label
        How messages call the environment.
    frame_key
        Key of ``info`` under which every environment counts its emulator's frames. None: a transition is
        one frame.
    episodes
        The single environments of a `SyncVectorEnv`, where their episodes can be played again.

    Raises
    ------
    EnvironmentFault
        The autoreset mode is not supported.
    SpecError
        A space is not supported.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        seeds: Sequence[np.random.SeedSequence],
        label: str,
        frame_key: str | None = None,
        episodes: Sequence[SeededEpisodes] = (),
    ) -> None:
        self._env, self._episodes = env, episodes
        self._label = label
        self._seeds = tuple(seeds)
        self._frame_key = frame_key
        self.num_envs = env.num_envs
        self._self_reset = autoreset_mode(env, label) is AutoresetMode.DISABLED
        if self._self_reset and isinstance(env, SyncVectorEnv):
            # SyncVectorEnv looks its mode up in every step. Its NEXT_STEP leaves an ended environment
            # unstepped, which no sequence of its lock-step calls under DISABLED can do.
            env.autoreset_mode = AutoresetMode.NEXT_STEP
            self._self_reset = False
        self.spec = EnvSpec.from_spaces(env.single_observation_space, env.single_action_space)
        self._resets = 0
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._frames = np.zeros(self.num_envs, np.int64)
        self._closed = False

    def reset(self, rows: Rows) -> None:
        observation, info = self._env.reset(seed=self._next_seed())
        self._write_observation(observation, rows)
        write_first_flags(rows)
        self._ended[:] = False
        self._count_frames(info)

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        first = self._ended.copy()
        if self._self_reset and first.any():
            reward, terminated, truncated, info = self._reset_and_step(actions, first, rows)
        else:
            observation, reward, terminated, truncated, info = self._env.step(self._to_env(actions))
            self._write_observation(observation, rows)
        reward = np.asarray(reward)
        if reward.dtype.kind not in "biuf":
            raise EnvironmentFault(
                f"{self._label}: a step returned rewards of dtype {reward.dtype}: expected numbers; "
                "let the environment return a float"
            )
        rows["reward"][...] = np.where(first, 0.0, reward)
        rows["terminated"][...] = np.asarray(terminated, np.bool_) & ~first
        rows["truncated"][...] = np.asarray(truncated, np.bool_) & ~first
        rows["first"][...] = first
        rows["frames"][...] = np.where(first, 0, self._count_frames(info))
        np.logical_or(rows["terminated"], rows["truncated"], out=self._ended)

    def open_episodes(self) -> list[OpenEpisode]:
        if not self._episodes:
            return super().open_episodes()
        ended = self._ended.tolist()
        return [env.open_episode(end) for env, end in zip(self._episodes, ended, strict=True)]

    def reopen(self, episodes: Sequence[OpenEpisode]) -> None:
        if not self._episodes:
            return super().reopen(episodes)
        for i, (env, episode) in enumerate(zip(self._episodes, episodes, strict=True)):
            info = env.reopen(episode)
            if self._frame_key is not None:
                self._frames[i] = info[self._frame_key]
        self._ended[:] = [episode.ended for episode in episodes]
        self._env.unwrapped._autoreset_envs[:] = self._ended  # type: ignore[attr-defined]
        return None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        env = self._env.unwrapped
        if isinstance(env, AsyncVectorEnv) and env._state is not AsyncState.DEFAULT:
            # Interrupted in a step: its pipes hold parts of messages, for whose rest it would wait for ever.
            env._state = AsyncState.DEFAULT
            self._env.close(terminate=True)
        else:
            self._env.close()

    def _reset_and_step(
        self, actions: NDArray[np.int64], ended: NDArray[np.bool_], rows: Rows
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        """One step of a DISABLED back end in which some environments only reset.

        Such a back end steps all environments in lock-step. Ended ones are reset before, since they must
        not be stepped past their end, and again afterwards, since their first observation must be the
        row that is written. Where all have ended, no step is needed and one reset is enough.
        """
        fresh, info = self._env.reset(options={"reset_mask": ended.copy()})
        if ended.all():
            self._write_observation(fresh, rows)
            nothing = np.zeros(self.num_envs)
            return nothing, nothing, nothing, info
        observation, reward, terminated, truncated, info = self._env.step(self._to_env(actions))
        # The next reset may reuse the arrays of this step.
        reward, terminated, truncated = np.array(reward), np.array(terminated), np.array(truncated)
        self._write_observation(observation, rows)
        fresh, _ = self._env.reset(options={"reset_mask": ended.copy()})
        self._write_observation(fresh, rows, ended)
        return reward, terminated, truncated, info

    def _next_seed(self) -> Any:
        draw, self._resets = self._resets, self._resets + 1
        if isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return [seed_integer(seed, draw) for seed in self._seeds]
        return seed_integer(joint_seed(self._seeds), draw)

    def _to_env(self, actions: NDArray[np.int64]) -> NDArray[np.int64]:
        return actions + self.spec.action_start

    def _count_frames(self, info: dict[str, Any]) -> NDArray[np.int64] | int:
        if self._frame_key is None:
            return 1
        frames = np.asarray(info[self._frame_key], np.int64)
        taken = frames - self._frames
        self._frames = frames.copy()
        return taken

    def _write_observation(self, observation: Any, rows: Rows, mask: NDArray[np.bool_] | None = None) -> None:
        leaves = flatten_observation(observation, self._env.single_observation_space)
        for leaf, value in zip(self.spec.observation, leaves, strict=True):
            write_leaf(leaf, np.asarray(value), rows[leaf.name], mask, self._label)


def write_leaf(
    leaf: ArraySpec, value: NDArray[Any], out: NDArray[Any], mask: NDArray[np.bool_] | None, label: str
) -> None:
    """Copy one leaf of a batched observation into its rows.

    Raises
    ------
    SpecError
        The environment returned another shape than its space declares, or a dtype that would lose
        more than precision.
    """
    if value.shape != out.shape:
        raise SpecError(
            f"{label}: {leaf.name} has shape {value.shape}: expected {out.shape}, as its observation "
            "space says; correct the environment's observation or its observation_space"
        )
    if not np.can_cast(value.dtype, out.dtype, "same_kind"):
        raise SpecError(
            f"{label}: {leaf.name} has dtype {value.dtype}: expected {out.dtype}, as its observation "
            "space says; correct the environment's observation or its observation_space"
        )
    if mask is None:
        np.copyto(out, value, casting="same_kind")
    else:
        out[mask] = value[mask]


def make_sync(
    make_one: Callable[[], gym.Env[Any, Any]],
    num_envs: int,
    seeds: Sequence[np.random.SeedSequence],
    label: str,
    frame_key: str | None = None,
    position: Position | None = None,
    exact: bool = False,
) -> GymnasiumGroup:
    """Make `num_envs` environments from a callable, stepped one after the other under NEXT_STEP.

    They say in `position` which of them is at work, and in notes on what they raise. With `exact` their
    episodes can be played again.

    Raises
    ------
    EnvironmentFault
        The callable returns something else than a new environment.
    """
    made: list[gym.Env[Any, Any]] = []
    episodes: list[SeededEpisodes] = []

    def make_checked() -> gym.Env[Any, Any]:
        env = make_one()
        if not isinstance(env, gym.Env):
            raise EnvironmentFault(
                f"{label}: returned a {type(env).__name__}: expected a new gymnasium.Env at each call"
            )
        if any(env is other for other in made):
            raise EnvironmentFault(
                f"{label}: returned the same environment twice; it must return a new one at each call"
            )
        made.append(env)
        if not exact:
            return env
        episodes.append(SeededEpisodes(env, seeds[len(episodes)]))
        return episodes[-1]

    try:
        makers = numbered(make_checked, env_ids_of(seeds), position)
        vector = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        return GymnasiumGroup(vector, seeds, label, frame_key, episodes)
    except Exception:
        for env in made:
            env.close()
        raise

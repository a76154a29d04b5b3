"""From the ``env`` section of a config to a group of environments."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from seedflow.config.tree import EnvConfig
from seedflow.envs.atari import ATARI_PREFIX, AtariGroup, preprocessed
from seedflow.envs.base import GroupEnv
from seedflow.envs.finite import FiniteGroup
from seedflow.envs.gymnasium_group import GymnasiumGroup, make_sync
from seedflow.envs.names import did_you_mean
from seedflow.envs.numbered import Position
from seedflow.envs.seeding import env_ids_of
from seedflow.envs.suites import register_suite
from seedflow.envs.synthetic import SYNTHETIC_ID, SyntheticGroup, SyntheticSettings
from seedflow.envs.wrappers import EnvWrapper, load_env_wrapper, parse_wrappers, wrap_rows
from seedflow.errors import ConfigError, EnvironmentFault, SeedflowError

EnvFn = Callable[[], gym.Env[Any, Any]]
"""A user's own environment: returns a new one at each call."""


def make_group(
    env: EnvConfig,
    num_envs: int,
    seeds: Sequence[np.random.SeedSequence],
    env_fn: EnvFn | None = None,
    position: Position | None = None,
) -> GroupEnv:
    """Make `num_envs` environments that are stepped by one call.

    Parameters
    ----------
    env
        The ``env`` section. With `env_fn`, its ``id``, ``kwargs`` and ``vectorization`` are not used.
    num_envs
        E.
    seeds
        One per environment, see `seedflow.envs.seeding.env_seed`.
    env_fn
        Makes one environment, in place of ``env.id``.
    position
        Where environments that are stepped one after the other say which of them is at work.

    Raises
    ------
    ConfigError
        A setting of the section is wrong: there is no such environment, it does not take its arguments, or
        whatever else it raised when it was made.
    EnvironmentFault
        `env_fn` raised, or what it returned is no new environment; or a vector environment does not say
        how it resets.
    SpecError
        Its observations or actions are not of a supported kind.
    """
    if num_envs < 1 or len(seeds) != num_envs:
        raise ValueError(f"expected one seed for each of {num_envs} >= 1 environments, got {len(seeds)}")
    per_env, on_rows = parse_wrappers(env.wrappers)
    env_wrappers = [load_env_wrapper(call) for call in per_env]
    label = "env_fn" if env_fn is not None else f"env.id = {env.id!r}"
    with _explained(label, EnvironmentFault if env_fn is not None else ConfigError):
        group = _make_bare(env, num_envs, seeds, env_fn, env_wrappers, label, position)
    try:
        group = wrap_rows(group, on_rows)
    except SeedflowError:
        group.close()
        raise
    return FiniteGroup(group, env.on_nonfinite, env_ids_of(seeds), label)


def _make_bare(
    env: EnvConfig,
    num_envs: int,
    seeds: Sequence[np.random.SeedSequence],
    env_fn: EnvFn | None,
    wrappers: Sequence[EnvWrapper],
    label: str,
    position: Position | None,
) -> GroupEnv:
    """A group without its row wrappers."""
    if env_fn is not None:
        return make_sync(_wrapped(env_fn, wrappers), num_envs, seeds, label, position=position)
    if env.id.startswith("seedflow/"):
        return _make_own(env, seeds, wrappers)
    if wrappers and env.vectorization == "entry_point":
        raise ConfigError(
            "env.vectorization = 'entry_point' cannot be combined with per-environment wrappers "
            f"({[name for name in env.wrappers if ':' in str(name)]}): expected 'auto' or 'sync'"
        )
    vectorized = not wrappers and env.vectorization != "sync"
    if env.id.startswith(ATARI_PREFIX):
        if vectorized:
            return AtariGroup(env.id, dict(env.kwargs), seeds)
        make_game = preprocessed(env.id, dict(env.kwargs))
        return make_sync(_wrapped(make_game, wrappers), num_envs, seeds, label, "frame_number", position)
    spec = _find_spec(env.id)
    has_entry_point = spec.vector_entry_point is not None and not spec.additional_wrappers
    if vectorized and (has_entry_point or env.vectorization == "entry_point"):
        return _make_vector(env, spec, num_envs, seeds, label)

    def make_one() -> gym.Env[Any, Any]:
        made: gym.Env[Any, Any] = gym.make(spec, **{"disable_env_checker": True, **env.kwargs})
        return made

    return make_sync(_wrapped(make_one, wrappers), num_envs, seeds, label, position=position)


def _make_own(
    env: EnvConfig, seeds: Sequence[np.random.SeedSequence], wrappers: Sequence[EnvWrapper]
) -> GroupEnv:
    if env.id != SYNTHETIC_ID:
        raise ConfigError(
            f"env.id = {env.id!r} is no environment of seedflow: {did_you_mean(env.id, [SYNTHETIC_ID])}"
        )
    if wrappers:
        raise ConfigError(
            f"env.wrappers: {SYNTHETIC_ID} is a group of its own, without single environments to wrap; "
            "remove the per-environment wrappers"
        )
    return SyntheticGroup(SyntheticSettings.parse(dict(env.kwargs)), seeds)


def _make_vector(
    env: EnvConfig,
    spec: gym.envs.registration.EnvSpec,
    num_envs: int,
    seeds: Sequence[np.random.SeedSequence],
    label: str,
) -> GroupEnv:
    try:
        vector = gym.make_vec(
            spec, num_envs, gym.envs.registration.VectorizeMode.VECTOR_ENTRY_POINT, **env.kwargs
        )
    except Exception as error:
        raise ConfigError(
            f"{label}: its vector entry point failed: {type(error).__name__}: {error}; if it does not take "
            f"these env.kwargs ({sorted(env.kwargs)}) or lacks a package, set env.vectorization to 'sync'"
        ) from error
    try:
        return GymnasiumGroup(vector, seeds, label)
    except SeedflowError:
        vector.close()
        raise


def _find_spec(env_id: str) -> gym.envs.registration.EnvSpec:
    """The registered spec of an id, which may name the module that registers it (``module:Name-v0``)."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in gym.registry:
        register_suite(name)
    return gym.spec(name)


def _wrapped(make_one: EnvFn, wrappers: Sequence[EnvWrapper]) -> EnvFn:
    def make() -> gym.Env[Any, Any]:
        env = make_one()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return make


@contextmanager
def _explained(label: str, kind: type[SeedflowError]) -> Iterator[None]:
    """Turn whatever making an environment raises into one of our errors that names it."""
    try:
        yield
    except SeedflowError:
        raise
    except Exception as error:
        text = f"{label} cannot be made: {type(error).__name__}: {error}"
        if isinstance(error, gym.error.UnregisteredEnv | ModuleNotFoundError) and kind is ConfigError:
            text += (
                "; name a registered environment (module:Name-v0 where a module registers it), or give a "
                "function that makes yours: seedflow.train(..., env_fn=...)"
            )
        raise kind(text) from error

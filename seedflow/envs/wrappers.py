"""Wrappers by name: the entries of ``env.wrappers``.

Two kinds exist. A *row wrapper* has a plain name, works on the rows of a whole group and so keeps the
environment's own vectorization: `select_observation`. A *per-environment wrapper* is named
``package.module:ClassName``, is a `gymnasium.Wrapper` (or any callable from environment to environment), and
makes the group step its environments one after the other. Arguments follow the name::

    env:
      wrappers:
        - gymnasium.wrappers:TimeAwareObservation
        - select_observation: {indices: [0, 2]}

The list is read innermost first, and per-environment wrappers stand before row wrappers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from seedflow.envs.base import GroupEnv, OpenEpisode, Rows
from seedflow.envs.names import did_you_mean, nearest
from seedflow.errors import ConfigError
from seedflow.specs import ArraySpec, EnvSpec

EnvWrapper = Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]


class SelectObservation(GroupEnv):
    """Keep some entries of a flat observation, in the given order.

    ``select_observation: {indices: [0, 2]}`` hides CartPole's velocities, which makes it a task for memory.

    Parameters
    ----------
    inner
        The group to wrap; closed with this one.
    indices
        Entries to keep, counted from 0.
    leaf
        The observation leaf to act on; others stay as they are.

    Raises
    ------
    ConfigError
        No such leaf, the leaf is not one-dimensional, or an index is not one of its entries.
    """

    def __init__(self, inner: GroupEnv, indices: Sequence[int], leaf: str = "observation") -> None:
        leaves = {spec.name: spec for spec in inner.spec.observation}
        if leaf not in leaves:
            raise ConfigError(f"select_observation: leaf = {leaf!r}: {did_you_mean(leaf, leaves)}")
        whole = leaves[leaf]
        if len(whole.shape) != 1:
            raise ConfigError(
                f"select_observation: {leaf} has shape {whole.shape}: expected one dimension; "
                "name a flat leaf with the argument 'leaf'"
            )
        valid = isinstance(indices, Sequence) and len(indices) > 0
        if not valid or not all(type(i) is int and 0 <= i < whole.shape[0] for i in indices):
            raise ConfigError(
                f"select_observation: indices = {indices!r}: expected a list of integers in "
                f"[0, {whole.shape[0]}), the entries of {leaf}"
            )
        self._inner = inner
        self._leaf = leaf
        self._indices = np.asarray(indices, np.intp)
        self._whole = np.zeros((inner.num_envs, *whole.shape), whole.dtype)
        self.num_envs = inner.num_envs
        kept = ArraySpec(leaf, (len(indices),), whole.dtype)
        self.spec = EnvSpec(
            tuple(kept if spec.name == leaf else spec for spec in inner.spec.observation),
            inner.spec.num_actions,
            inner.spec.action_start,
        )

    def reset(self, rows: Rows) -> None:
        self._inner.reset({**rows, self._leaf: self._whole})
        self._select(rows)

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        self._inner.step(actions, {**rows, self._leaf: self._whole})
        self._select(rows)

    def open_episodes(self) -> list[OpenEpisode]:
        return self._inner.open_episodes()

    def reopen(self, episodes: Sequence[OpenEpisode]) -> None:
        self._inner.reopen(episodes)

    def close(self) -> None:
        self._inner.close()

    def _select(self, rows: Rows) -> None:
        np.take(self._whole, self._indices, axis=1, out=rows[self._leaf], mode="clip")


ROW_WRAPPERS: dict[str, Callable[..., GroupEnv]] = {"select_observation": SelectObservation}


@dataclass(frozen=True)
class WrapperCall:
    """One entry of ``env.wrappers``."""

    name: str
    arguments: Mapping[str, Any]

    @property
    def per_env(self) -> bool:
        """Whether it wraps each environment rather than the group's rows."""
        return ":" in self.name


def parse_wrappers(entries: Sequence[str | Mapping[str, Any]]) -> tuple[list[WrapperCall], list[WrapperCall]]:
    """Check ``env.wrappers`` and split it into per-environment and row wrappers.

    Nothing is imported.

    Raises
    ------
    ConfigError
        An entry is malformed, unknown or out of order.
    """
    per_env: list[WrapperCall] = []
    on_rows: list[WrapperCall] = []
    for i, entry in enumerate(entries):
        call = _parse_entry(entry, f"env.wrappers[{i}]")
        if call.per_env and on_rows:
            raise ConfigError(
                f"env.wrappers[{i}] = {call.name!r} wraps each environment, but {on_rows[-1].name!r} "
                "before it wraps the group around them; put it first"
            )
        (per_env if call.per_env else on_rows).append(call)
    return per_env, on_rows


def _parse_entry(entry: str | Mapping[str, Any], key: str) -> WrapperCall:
    arguments: Any
    if isinstance(entry, str):
        name, arguments = entry, {}
    elif len(entry) == 1:
        [(name, arguments)] = entry.items()
    else:
        raise ConfigError(f"{key} = {dict(entry)!r}: expected a name or one {{name: arguments}} pair")
    if not isinstance(arguments, Mapping):
        raise ConfigError(
            f"{key} = {{{name!r}: {arguments!r}}}: expected its arguments as a mapping, such as "
            "{select_observation: {indices: [0, 2]}}"
        )
    if ":" not in name and name not in ROW_WRAPPERS:
        raise ConfigError(
            f"{key} = {name!r} is no wrapper of seedflow: {_wrapper_meant(name)} "
            "(a gymnasium.Wrapper is named package.module:ClassName)"
        )
    return WrapperCall(name, dict(arguments))


def _wrapper_meant(name: str) -> str:
    """What to write instead of a plain name: a wrapper of seedflow's, or one of Gymnasium's in full."""
    module, _, attribute = name.rpartition(".")
    if module:
        return f"did you mean '{module}:{attribute}'?"
    close = nearest(name, [*ROW_WRAPPERS, *gym.wrappers.__all__])
    if close is None or close in ROW_WRAPPERS:
        return did_you_mean(close or name, ROW_WRAPPERS)
    return f"did you mean 'gymnasium.wrappers:{close}'?"


def load_env_wrapper(call: WrapperCall) -> EnvWrapper:
    """Import a per-environment wrapper.

    Raises
    ------
    ConfigError
        Its module cannot be imported here, or has no such name. The wrapper that is returned raises it
        where it does not take its arguments or the environment.
    """
    module_name, _, attribute = call.name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"env.wrappers: {call.name!r} cannot be imported ({error}); its module must be installed "
            "wherever environments are stepped"
        ) from error
    wrapper = getattr(module, attribute, None)
    if not callable(wrapper):
        classes = [known for known in dir(module) if known[0] != "_" and callable(getattr(module, known))]
        close = nearest(attribute, classes)
        hint = f"did you mean {close!r}?" if close else "expected the name of a class or function in it"
        what = "no" if wrapper is None else "no wrapper"
        raise ConfigError(f"env.wrappers: module {module_name!r} has {what} {attribute!r}: {hint}")

    def wrap(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        shown = f"env.wrappers: {call.name}" + (f" with {dict(call.arguments)!r}" if call.arguments else "")
        try:
            wrapped = wrapper(env, **call.arguments)
        except Exception as error:
            raise ConfigError(f"{shown}: {type(error).__name__}: {error}") from error
        if not isinstance(wrapped, gym.Env):
            raise ConfigError(f"{shown}: returned a {type(wrapped).__name__}, expected a gymnasium.Env")
        return wrapped

    return wrap


def wrap_rows(group: GroupEnv, calls: Sequence[WrapperCall]) -> GroupEnv:
    """Apply row wrappers to a group, innermost first.

    Raises
    ------
    ConfigError
        A wrapper does not take its arguments or does not fit the group.
    """
    for call in calls:
        try:
            group = ROW_WRAPPERS[call.name](group, **call.arguments)
        except TypeError as error:
            raise ConfigError(f"env.wrappers: {call.name} with {dict(call.arguments)!r}: {error}") from error
    return group

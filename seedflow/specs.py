"""Named array specs: the shapes and dtypes on which actors and learner agree.

A Gymnasium observation space, however nested, becomes a flat tuple of named leaves in the space's own
order: a `Box` is the one leaf ``observation``; ``Dict(image=..., aux=Tuple(a, b))`` gives
``observation/image``, ``observation/aux/0`` and ``observation/aux/1``. Everything below the networks
moves leaves and never looks into them.

Examples
--------
>>> import gymnasium as gym, numpy as np
>>> space = gym.spaces.Dict(speed=gym.spaces.Box(-1, 1, (2,)), image=gym.spaces.Box(0, 255, (8, 8), np.uint8))
>>> [(leaf.name, leaf.shape, leaf.dtype.name) for leaf in observation_leaves(space)]
[('observation/speed', (2,), 'float32'), ('observation/image', (8, 8), 'uint8')]
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from seedflow.errors import SpecError

OBSERVATION_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype of one array, without batch or time axes.

    Attributes
    ----------
    categories
        Where the items are categories: how many each of them may be, in the order of the flattened shape.
        Empty for numbers.
    lowest
        The smallest category of each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    categories: tuple[int, ...] = ()
    lowest: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one item."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        document = {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name}
        if self.categories:
            document |= {"categories": list(self.categories), "lowest": list(self.lowest)}
        return document

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ArraySpec:
        shape, categories, lowest = (
            tuple(int(n) for n in value.get(key, ())) for key in ("shape", "categories", "lowest")
        )
        if categories and not len(categories) == len(lowest) == math.prod(shape):
            raise ValueError(f"{value['name']}: {len(categories)} categories for the shape {shape}")
        return cls(str(value["name"]), shape, np.dtype(value["dtype"]), categories, lowest)


@dataclass(frozen=True)
class EnvSpec:
    """What one environment shows and takes.

    Attributes
    ----------
    observation
        Leaves of the observation, see the module's docstring.
    num_actions
        Size of the discrete action space.
    action_start
        Smallest action of the environment (`Discrete.start`); the learner counts from 0.
    """

    observation: tuple[ArraySpec, ...]
    num_actions: int
    action_start: int = 0

    @property
    def fingerprint(self) -> str:
        """Hash by which an actor and a learner know that they mean the same arrays."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self) -> dict[str, Any]:
        return {
            "observation": [leaf.to_json() for leaf in self.observation],
            "num_actions": self.num_actions,
            "action_start": self.action_start,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EnvSpec:
        leaves = tuple(ArraySpec.from_json(leaf) for leaf in value["observation"])
        return cls(leaves, int(value["num_actions"]), int(value["action_start"]))

    @classmethod
    def from_spaces(cls, observation: gym.Space[Any], action: gym.Space[Any]) -> EnvSpec:
        """Derive the spec of an environment from its (unbatched) spaces.

        Raises
        ------
        SpecError
            For a space that seedflow cannot carry; the message names it.
        """
        if not isinstance(action, gym.spaces.Discrete):
            raise SpecError(
                f"action space {action} is not supported: expected a Discrete space; "
                "wrap the environment so that its actions are Discrete"
            )
        return cls(observation_leaves(observation), int(action.n), int(action.start))


def observation_leaves(space: gym.Space[Any], name: str = "observation") -> tuple[ArraySpec, ...]:
    """Flatten a space into named leaves, in the order of `flatten_observation`."""
    if isinstance(space, gym.spaces.Dict):
        return tuple(
            leaf for key, sub in space.spaces.items() for leaf in observation_leaves(sub, f"{name}/{key}")
        )
    if isinstance(space, gym.spaces.Tuple):
        return tuple(
            leaf for i, sub in enumerate(space.spaces) for leaf in observation_leaves(sub, f"{name}/{i}")
        )
    if isinstance(
        space, gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiBinary | gym.spaces.MultiDiscrete
    ):
        shape, dtype = space.shape, np.dtype(space.dtype)
        if dtype.name not in OBSERVATION_DTYPES:
            raise SpecError(
                f"{name} has dtype {dtype}: expected one of {', '.join(OBSERVATION_DTYPES)}; "
                "convert it in a wrapper"
            )
        return (ArraySpec(name, tuple(shape or ()), dtype, *_categories(space)),)
    raise SpecError(
        f"{name} is a {type(space).__name__} space, which has no fixed shape that seedflow can carry; "
        "turn it into a Box, Discrete, Dict or Tuple in a wrapper"
    )


def _categories(space: gym.Space[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many categories each item may be, and the smallest one."""
    if isinstance(space, gym.spaces.Discrete):
        return (int(space.n),), (int(space.start),)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(map(int, space.nvec.flatten())), tuple(map(int, space.start.flatten()))
    return (), ()


def flatten_observation(observation: Any, space: gym.Space[Any] | None = None) -> Iterator[Any]:
    """Yield the leaves of a (batched or single) observation in the order of `observation_leaves`.

    Parameters
    ----------
    observation
        As an environment returns it.
    space
        Its space. Give it wherever the observation comes from foreign code: a mapping may hold its keys
        in another order than its space does, and without the space it is taken as it stands.

    Raises
    ------
    SpecError
        The observation lacks a part that the space has, or has one more.
    """
    if space is not None:
        yield from _flatten_by_space(observation, space, "observation")
    elif isinstance(observation, Mapping):
        for value in observation.values():
            yield from flatten_observation(value)
    elif isinstance(observation, tuple):
        for value in observation:
            yield from flatten_observation(value)
    else:
        yield observation


def _flatten_by_space(observation: Any, space: gym.Space[Any], name: str) -> Iterator[Any]:
    if isinstance(space, gym.spaces.Dict):
        if not isinstance(observation, Mapping) or observation.keys() != space.spaces.keys():
            found = str(
                sorted(map(str, observation)) if isinstance(observation, Mapping) else type(observation)
            )
            raise SpecError(
                f"{name} must be a mapping with the keys {sorted(map(str, space.spaces))} of its space, "
                f"got {found}; correct the environment's observation or its observation_space"
            )
        for key, sub in space.spaces.items():
            yield from _flatten_by_space(observation[key], sub, f"{name}/{key}")
    elif isinstance(space, gym.spaces.Tuple):
        if not isinstance(observation, tuple | list) or len(observation) != len(space.spaces):
            found = str(len(observation) if isinstance(observation, tuple | list) else type(observation))
            raise SpecError(
                f"{name} must be a tuple of the {len(space.spaces)} parts of its space, got {found}; "
                "correct the environment's observation or its observation_space"
            )
        for i, sub in enumerate(space.spaces):
            yield from _flatten_by_space(observation[i], sub, f"{name}/{i}")
    else:
        yield observation


def leaf_of(observation: Any, leaf: ArraySpec) -> Any:
    """The array of one leaf within an observation, nested as its space or flat by leaf names.

    Raises
    ------
    SpecError
        If there is no such part.
    """
    if isinstance(observation, Mapping) and leaf.name in observation:
        return observation[leaf.name]
    part = observation
    for key in leaf.name.split("/")[1:]:
        try:
            part = part[key] if isinstance(part, Mapping) else part[int(key)]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise SpecError(
                f"the observation has no part {leaf.name}; expected one nested as the environment's space"
            ) from error
    return part

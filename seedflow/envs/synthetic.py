"""`seedflow/Synthetic-v0`: an environment of chosen size, cost and content.

It measures what everything around an environment costs, and lets a test know beforehand what must
arrive in an unroll. Settings (``env.kwargs``):

==================  =============  ======================================================================
observation_shape   ``[84, 84]``   shape of the one observation leaf
observation_dtype   ``uint8``      any dtype that an observation may have
num_actions         ``6``          actions have no effect
step_cost_us        ``0``          CPU microseconds that each environment burns per step
episode_length      ``1000``       transitions per episode, or ``[low, high]``: drawn per episode, inclusive
ending              ``terminated`` how episodes end: ``terminated`` or ``truncated``
content             ``noise``      ``noise``: random observations and rewards in {0, 1};
                                   ``constant``: observation 1, reward 1;
                                   ``counting``: see `counting_observation` and `counting_reward`
frames_per_step     ``1``          what a transition counts as environment frames
==================  =============  ======================================================================

In ``counting`` content an environment's number is the ``env_id`` of its seed (see
`seedflow.envs.seeding.env_seed`), or its index in the group for any other seed. Its rows are counted
from 0, the first row after the group was made, reset rows included.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from seedflow.envs.base import GroupEnv, Rows, write_first_flags
from seedflow.envs.seeding import env_ids_of, joint_seed, seed_integer
from seedflow.errors import ConfigError
from seedflow.specs import OBSERVATION_DTYPES, ArraySpec, EnvSpec

SYNTHETIC_ID = "seedflow/Synthetic-v0"
_NOISE_FRAMES = 64


class SyntheticSettings(BaseModel):
    """``env.kwargs`` of `seedflow/Synthetic-v0`; the module's docstring explains each."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    observation_shape: tuple[NonNegativeInt, ...] = (84, 84)
    observation_dtype: str = "uint8"
    num_actions: PositiveInt = 6
    step_cost_us: Annotated[float, Field(ge=0.0)] = 0.0
    episode_length: PositiveInt | tuple[PositiveInt, PositiveInt] = 1000
    ending: Literal["terminated", "truncated"] = "terminated"
    content: Literal["noise", "constant", "counting"] = "noise"
    frames_per_step: PositiveInt = 1

    @classmethod
    def parse(cls, kwargs: dict[str, Any]) -> SyntheticSettings:
        """Check ``env.kwargs``.

        Raises
        ------
        ConfigError
            Names each wrong setting.
        """
        try:
            settings = cls(**kwargs)
        except ValidationError as error:
            lines = [f"env.kwargs.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
            known = ", ".join(cls.model_fields)
            raise ConfigError(f"{SYNTHETIC_ID}: {'; '.join(lines)} (settings: {known})") from error
        if settings.observation_dtype not in OBSERVATION_DTYPES:
            raise ConfigError(
                f"{SYNTHETIC_ID}: env.kwargs.observation_dtype = {settings.observation_dtype!r}: "
                f"expected one of {', '.join(OBSERVATION_DTYPES)}"
            )
        low, high = settings.lengths
        if low > high:
            raise ConfigError(
                f"{SYNTHETIC_ID}: env.kwargs.episode_length = {[low, high]}: "
                "expected [low, high] with low <= high"
            )
        return settings

    @property
    def lengths(self) -> tuple[int, int]:
        """Shortest and longest episode."""
        if isinstance(self.episode_length, tuple):
            return self.episode_length
        return self.episode_length, self.episode_length


def counting_observation(env_id: int, count: int, leaf: ArraySpec) -> NDArray[Any]:
    """Observation of row `count` of environment `env_id` under ``counting`` content.

    Element k, in C order, is ``(1000 * env_id + count + k) % M``. M is the largest power of two up to
    2**24 such that the leaf's dtype holds all of [0, M) exactly: 256 for uint8, 2048 for float16.
    """
    k = np.arange(math.prod(leaf.shape), dtype=np.int64).reshape(leaf.shape)
    return ((1000 * env_id + count + k) % _modulus(leaf.dtype)).astype(leaf.dtype)


def counting_reward(env_id: int, count: int) -> np.float32:
    """Reward of the transition into row `count` (0 if that is a reset row); exact in float32.

    ``env_id % 16 + (count % 97) / 128``.
    """
    return np.float32(env_id % 16 + (count % 97) / 128)


def _modulus(dtype: np.dtype[Any]) -> int:
    if dtype.kind == "b":
        return 2
    bits = np.finfo(dtype).nmant + 1 if dtype.kind == "f" else 8 * dtype.itemsize - (dtype.kind == "i")
    return int(2 ** min(bits, 24))


class SyntheticGroup(GroupEnv):
    """A group of synthetic environments.

    Parameters
    ----------
    settings
        What the environments look like.
    seeds
        One per environment.
    """

    def __init__(self, settings: SyntheticSettings, seeds: Sequence[np.random.SeedSequence]) -> None:
        self.settings = settings
        self.num_envs = len(seeds)
        self._leaf = ArraySpec(
            "observation", settings.observation_shape, np.dtype(settings.observation_dtype)
        )
        self.spec = EnvSpec((self._leaf,), settings.num_actions)
        self._rngs = [np.random.default_rng(seed_integer(seed)) for seed in seeds]
        self._env_ids = env_ids_of(seeds)
        self._count = -1
        self._left = np.zeros(self.num_envs, np.int64)
        self._noise = self._make_noise(joint_seed(seeds)) if settings.content == "noise" else None

    def _make_noise(self, seed: np.random.SeedSequence) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        shape = (_NOISE_FRAMES, *self._leaf.shape)
        if self._leaf.dtype.kind == "f":
            return rng.standard_normal(shape).astype(self._leaf.dtype)
        return rng.integers(0, _modulus(self._leaf.dtype), shape).astype(self._leaf.dtype)

    def reset(self, rows: Rows) -> None:
        write_first_flags(rows)
        self._left[:] = [self._draw_length(i) for i in range(self.num_envs)]
        self._count += 1
        self._write_observations(rows["observation"])

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        self._burn()
        self._count += 1
        first = self._left == 0
        self._left -= ~first
        for i in np.flatnonzero(first):
            self._left[i] = self._draw_length(int(i))
        ended = (self._left == 0) & ~first
        rows["first"][...] = first
        rows["terminated"][...] = ended if self.settings.ending == "terminated" else False
        rows["truncated"][...] = ended if self.settings.ending == "truncated" else False
        rows["frames"][...] = np.where(first, 0, self.settings.frames_per_step)
        rows["reward"][...] = np.where(first, np.float32(0.0), self._rewards())
        self._write_observations(rows["observation"])

    def close(self) -> None:
        """Nothing is held."""

    def _draw_length(self, i: int) -> int:
        low, high = self.settings.lengths
        return low if low == high else int(self._rngs[i].integers(low, high, endpoint=True))

    def _burn(self) -> None:
        """Spend CPU time of this thread; time that other processes take from it does not count."""
        if self.settings.step_cost_us > 0:
            end = time.thread_time_ns() + int(self.settings.step_cost_us * 1000 * self.num_envs)
            while time.thread_time_ns() < end:
                pass

    def _rewards(self) -> NDArray[np.float32]:
        if self.settings.content == "counting":
            return np.array([counting_reward(e, self._count) for e in self._env_ids], np.float32)
        if self.settings.content == "noise":
            return np.array([rng.integers(2) for rng in self._rngs], np.float32)
        return np.ones(self.num_envs, np.float32)

    def _write_observations(self, out: NDArray[Any]) -> None:
        if self._noise is not None:
            picks = (self._count + 7 * np.arange(self.num_envs)) % _NOISE_FRAMES
            np.take(self._noise, picks, axis=0, out=out)
        elif self.settings.content == "counting":
            for i, env_id in enumerate(self._env_ids):
                out[i] = counting_observation(env_id, self._count, self._leaf)
        else:
            out[...] = 1

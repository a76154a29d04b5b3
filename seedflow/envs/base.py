"""What a group of environments is: the contract between an actor and whatever it steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import ConfigError
from seedflow.specs import EnvSpec

Rows = Mapping[str, NDArray[Any]]
"""Arrays of E rows by field name; see `GroupEnv`."""


@dataclass(frozen=True)
class OpenEpisode:
    """An episode that is under way: with its seed and its actions it can be played again.

    Attributes
    ----------
    number
        How many episodes of its environment went before, from which its seed follows.
    actions
        Those taken so far, as the environment takes them.
    ended
        Whether its last row was its end.
    """

    number: int
    actions: tuple[int, ...]
    ended: bool


class GroupEnv(ABC):
    """E environments that one call steps, each writing one row.

    A row describes one index of an environment's stream: the observation o_t together with what
    led to it. `reset` and `step` write these fields of ``rows``, all of length E:

    ===================  ==========  ==============================================================
    ``observation...``   leaf dtype  o_t, one array ``[E, *shape]`` per leaf of ``spec.observation``
    ``reward``           float32     of the transition into t, as the environment gave it (no clipping)
    ``terminated``       bool        o_t is terminal: nothing follows that is worth anything
    ``truncated``        bool        the episode was cut off at o_t, which is its true last observation
    ``first``            bool        o_t is an episode's first observation
    ``frames``           int32       frames of the underlying emulator that the transition took
    ``masked``           int32       numbers that were replaced by 0, written by `FiniteGroup` alone
    ===================  ==========  ==============================================================

    An episode's end takes two rows. The last observation is an ordinary row: it has ``terminated`` or
    ``truncated`` set, together with the last reward. The next call resets the environment, ignores its
    action, and writes a row with ``first`` set, reward 0, both flags false and 0 frames. Environments
    of a group end independently: while one resets, the others step.

    ``terminated`` without ``first`` on the next row is allowed: it marks a loss of life, after which
    the same episode goes on.

    Numbers may be NaN or infinite where the environment says so; the group passes them on, and
    `seedflow.envs.finite.FiniteGroup` around it acts on them. Whatever an
    environment raises while it is reset or stepped comes through unchanged. A group keeps no reference
    to ``rows`` after the call, so that the caller may pass shared memory. Groups are not thread-safe.

    Attributes
    ----------
    spec
        What each environment shows and takes.
    num_envs
        E.
    """

    spec: EnvSpec
    num_envs: int

    @abstractmethod
    def reset(self, rows: Rows) -> None:
        """Start a new episode in every environment and write its first row.

        The first call uses the seeds that the group was made with; each later call derives new seeds
        from them, so that a second reset does not repeat the episodes after the first.
        """

    @abstractmethod
    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        """Step every environment and write the next row.

        Parameters
        ----------
        actions
            int64 ``[E]``, counted from 0 up to ``spec.num_actions - 1``. The action of an environment
            whose last row ended an episode is ignored.
        rows
            Where to write. May be the arrays of the previous call.
        """

    def open_episodes(self) -> list[OpenEpisode]:
        """The episodes that are under way, where the group was made with ``env.exact``.

        Raises
        ------
        ConfigError
            If it was not.
        """
        raise ConfigError("env.exact is not set: the episodes of these environments cannot be played again")

    def reopen(self, episodes: Sequence[OpenEpisode]) -> None:
        """Play episodes again up to where they were; in a new group, in place of `reset`."""
        raise ConfigError("env.exact is not set: the episodes of these environments cannot be played again")

    @abstractmethod
    def close(self) -> None:
        """Free what the environments hold. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def allocate_rows(spec: EnvSpec, num_envs: int) -> dict[str, NDArray[Any]]:
    """Zeroed rows for `num_envs` environments in ordinary memory, all fields of `GroupEnv`."""
    rows: dict[str, NDArray[Any]] = {
        leaf.name: np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in spec.observation
    }
    rows["reward"] = np.zeros(num_envs, np.float32)
    rows["terminated"] = np.zeros(num_envs, np.bool_)
    rows["truncated"] = np.zeros(num_envs, np.bool_)
    rows["first"] = np.zeros(num_envs, np.bool_)
    rows["frames"] = np.zeros(num_envs, np.int32)
    rows["masked"] = np.zeros(num_envs, np.int32)
    return rows


def write_first_flags(rows: Rows) -> None:
    """Fill all fields but the observation as every reset row has them."""
    rows["reward"][...] = 0.0
    rows["terminated"][...] = False
    rows["truncated"][...] = False
    rows["first"][...] = True
    rows["frames"][...] = 0

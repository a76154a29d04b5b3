"""NaN and infinity in what an environment returns: an error that says where, or zero and a count.

One such number in a batch makes every weight of the network NaN at the next update, and then every action of
every environment is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from seedflow.envs.base import GroupEnv, OpenEpisode, Rows
from seedflow.errors import EnvironmentFault

log = logging.getLogger(__name__)

Policy = Literal["error", "mask"]


class FiniteGroup(GroupEnv):
    """A group whose observations and rewards are finite; the outermost one, as `make_group` makes it.

    Writes the field ``masked``: how many numbers of a row were replaced by 0.

    Parameters
    ----------
    inner
        The group to look after; closed with this one.
    policy
        ``error`` raises, ``mask`` replaces by 0.
    env_ids
        How messages call the environments.
    label
        How messages call what they are.
    """

    def __init__(self, inner: GroupEnv, policy: Policy, env_ids: Sequence[int], label: str) -> None:
        self._inner, self._policy = inner, policy
        self._env_ids, self._label = tuple(env_ids), label
        self.spec, self.num_envs = inner.spec, inner.num_envs
        floats = [leaf.name for leaf in inner.spec.observation if leaf.dtype.kind == "f"]
        self._fields = (*floats, "reward")
        self._step = 0
        self._warned = False

    def reset(self, rows: Rows) -> None:
        self._inner.reset(rows)
        self._look(rows)

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        self._step += 1
        self._inner.step(actions, rows)
        self._look(rows)

    def open_episodes(self) -> list[OpenEpisode]:
        return self._inner.open_episodes()

    def reopen(self, episodes: Sequence[OpenEpisode]) -> None:
        self._inner.reopen(episodes)

    def close(self) -> None:
        self._inner.close()

    def _look(self, rows: Rows) -> None:
        rows["masked"][...] = 0
        for name in self._fields:
            finite = np.isfinite(rows[name])
            if not finite.all():
                self._found(name, rows[name], ~finite, rows["masked"])

    def _found(
        self, name: str, values: NDArray[Any], wrong: NDArray[np.bool_], masked: NDArray[np.int32]
    ) -> None:
        row = int(np.argwhere(wrong)[0][0])
        what = f"{name} of environment {self._env_ids[row]} is {values[wrong][0]} at step {self._step}"
        if self._policy == "error":
            raise EnvironmentFault(
                f"{self._label}: {what} (counted since the environment was made): expected finite numbers; "
                "correct the environment, or set env.on_nonfinite=mask to put 0 in their place",
                identity=f"{name} of {self._label} is not finite",
            )
        if not self._warned:
            self._warned = True
            log.warning("%s: %s and was replaced by 0 (env.on_nonfinite = mask)", self._label, what)
        masked += wrong.reshape(self.num_envs, -1).sum(axis=1, dtype=np.int32)
        values[wrong] = 0

"""Evaluation rounds.

During training, evaluation environments are leases of their own. Between two rounds the learner simply
does not answer them, so they cost nothing; while a round is open they are served like any other, with the
newest weights. Only episodes that began within the round count, and how many each environment contributes
is fixed beforehand, so that short episodes are not favoured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedflow.nested import Arrays, numbers


class Episode(NamedTuple):
    """Sum of raw rewards, and transitions, of one episode."""

    total: float
    length: int


class EvaluationRounds:
    """When evaluation environments are served, and which of their episodes count.

    Parameters
    ----------
    every
        Agent steps between the beginnings of two rounds; 0: never.
    episodes
        Episodes of a round, spread evenly over its environments.
    rows
        Size of the row table.
    """

    def __init__(self, every: int, episodes: int, rows: int) -> None:
        self._every, self._episodes = every, episodes
        self._left = np.zeros(rows, np.int64)  # episodes that a row still contributes
        self._counting = np.zeros(rows, np.bool_)  # the row's open episode began within the round
        self._return = np.zeros(rows, np.float64)
        self._rows = np.zeros(0, np.int64)
        self._length = np.zeros(rows, np.int64)
        self._episodes_seen: list[Episode] = []
        self._again = False  # a round was broken off
        self.open = False

    def open_if_due(self, agent_steps: int, due_at: int, rows: NDArray[np.int64]) -> int:
        """Open a round over `rows` when its time has come; returns when the next one is due."""
        if not self._every or self.open or not len(rows) or not (self._again or agent_steps >= due_at):
            return due_at
        self.open, self._again = True, False
        self._rows, self._episodes_seen = rows, []
        self._counting[:] = False
        self._left[:] = 0
        self._left[rows] = self._episodes // len(rows)
        self._left[rows[: self._episodes % len(rows)]] += 1
        return agent_steps - agent_steps % self._every + self._every

    def record(self, rows: NDArray[np.int64], first: NDArray[np.bool_], reward: NDArray[np.float32]) -> None:
        """Take in one step of some rows: whether it begins an episode, and the reward into it."""
        counted = rows[first & self._counting[rows] & (self._left[rows] > 0)]
        closed = zip(self._return[counted].tolist(), self._length[counted].tolist(), strict=True)
        self._episodes_seen += [Episode(total, length) for total, length in closed]
        self._left[counted] -= 1
        self._counting[rows] |= first
        self._return[rows] = np.where(first, 0.0, self._return[rows] + reward)
        self._length[rows] = np.where(first, 0, self._length[rows] + 1)

    def state(self) -> Arrays:
        """Of the open round, see `seedflow.nested`."""
        return {
            "left": self._left,
            "counting": self._counting,
            "return": self._return,
            "length": self._length,
            "rows": self._rows,
            "episodes": np.array(self._episodes_seen, np.float64).reshape(-1, 2),
            "flags": numbers(self.open, self._again),
        }

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._rows = arrays["rows"].copy()
        self._episodes_seen = [Episode(total, int(length)) for total, length in arrays["episodes"].tolist()]
        self.open, self._again = (bool(flag) for flag in arrays["flags"])
        for name in ("left", "counting", "return", "length"):
            self.state()[name][:] = arrays[name]

    def forget(self, rows: NDArray[np.int64]) -> None:
        """The lease of these rows is gone.

        A round that still waits for episodes of theirs is broken off, and another opens as soon as there are
        environments again: the episodes that had ended by then would be the short ones.
        """
        if self.open and self._left[rows].any():
            self.open, self._again = False, True
        self._rows = np.setdiff1d(self._rows, rows)
        self._left[rows] = 0
        self._counting[rows] = False

    def result_if_complete(self) -> list[Episode] | None:
        """Close a finished round and return its episodes."""
        if not self.open or self._left[self._rows].any():
            return None
        self.open = False
        return self._episodes_seen

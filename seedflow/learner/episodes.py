"""Returns and lengths of episodes, from the rows that pass through inference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seedflow.kernels.jit import cpu_kernel
from seedflow.nested import Arrays, numbers


class EpisodeStatistics:
    """Running return and length of the episode in every row of a table of environments.

    A row holds the observation at index t together with the reward of the transition into t. The row
    that begins an episode (`first`) belongs to no transition; it closes the episode before it.
    So an episode closes once, when the environment has really been reset: a life lost, which may set
    ``terminated``, closes nothing. An episode whose beginning was not seen never counts.

    Rewards are taken as the environment gave them and summed in float64.

    Parameters
    ----------
    num_rows
        Environments in the table.

    Attributes
    ----------
    steps
        Transitions seen so far, over all rows.
    frames
        Environment frames of those transitions.

    Examples
    --------
    One environment whose episodes take two steps of reward 1:

    >>> statistics = EpisodeStatistics(1)
    >>> for reward, first in [(0, True), (1, False), (1, False), (0, True)]:
    ...     returns, lengths = statistics.update([0], [reward], [first], [1 - first])
    >>> returns, lengths
    (array([2.]), array([2]))
    """

    def __init__(self, num_rows: int) -> None:
        if num_rows < 1:
            raise ValueError(f"num_rows = {num_rows}: expected at least one environment")
        self._return = np.zeros(num_rows, np.float64)
        self._length = np.zeros(num_rows, np.int64)
        self._open = np.zeros(num_rows, np.bool_)
        self.steps = 0
        self.frames = 0

    def update(
        self, rows: npt.ArrayLike, reward: npt.ArrayLike, first: npt.ArrayLike, frames: npt.ArrayLike
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Take in one step of some environments.

        Parameters
        ----------
        rows : int[n]
            Rows of the table, each at most once.
        reward : float[n]
            Raw reward of the transition into this step.
        first : bool[n]
            Whether this step begins an episode.
        frames : int[n]
            Environment frames of the transition.

        Returns
        -------
        returns : float64[k]
            Sums of rewards of the k episodes that this step closed, in the order of `rows`.
        lengths : int64[k]
            Their transitions.
        """
        rows, first = np.asarray(rows, np.int64), np.asarray(first, np.bool_)
        reward, frames = np.asarray(reward, np.float64), np.asarray(frames, np.int64)
        self._check(rows, reward=reward, first=first, frames=frames)
        steps, simulated, returns, lengths = _update(
            self._return, self._length, self._open, rows, reward, first, frames
        )
        self.steps += steps
        self.frames += simulated
        return returns, lengths

    def state(self) -> Arrays:
        """Of the open episodes, see `seedflow.nested`."""
        counts = numbers(self.steps, self.frames)
        return {"return": self._return, "length": self._length, "open": self._open, "counts": counts}

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self.steps, self.frames = arrays["counts"].tolist()
        for name, array in self.state().items():
            array[:] = arrays[name]

    def drop(self, rows: npt.ArrayLike) -> None:
        """Forget the open episodes of these rows, whose lease is gone."""
        self._open[np.asarray(rows, np.int64)] = False

    def _check(self, rows: npt.NDArray[np.int64], **fields: npt.NDArray[Any]) -> None:
        if rows.ndim != 1:
            raise ValueError(f"rows has shape {rows.shape}: expected one axis")
        for name, values in fields.items():
            if values.shape != rows.shape:
                raise ValueError(f"{name} has shape {values.shape}: expected {rows.shape}, that of rows")


@cpu_kernel
def _update(total: Any, length: Any, begun: Any, rows: Any, reward: Any, first: Any, frames: Any) -> Any:
    """Return transitions, frames, and returns and lengths of the episodes that were closed."""
    returns, lengths = np.empty(len(rows), np.float64), np.empty(len(rows), np.int64)
    steps = simulated = closed = 0
    for i in range(len(rows)):
        row = rows[i]
        if not first[i]:
            total[row] += reward[i]
            length[row] += 1
            steps += 1
            simulated += frames[i]
            continue
        if begun[row] and length[row] > 0:
            returns[closed], lengths[closed] = total[row], length[row]
            closed += 1
        total[row], length[row], begun[row] = 0.0, 0, True
    return steps, simulated, returns[:closed], lengths[:closed]

"""How far a run is."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class _Counter:
    """An integer in one cell of `Progress`; each has one loop that writes it."""

    def __init__(self, cell: int) -> None:
        self._cell = cell

    def __get__(self, progress: Progress, owner: type[Progress]) -> int:
        return int(progress.cells[self._cell])

    def __set__(self, progress: Progress, value: int) -> None:
        progress.cells[self._cell] = value


class Progress:
    """The counters of a run; saved in every checkpoint, so that a resumed run goes on counting.

    Parameters
    ----------
    cells
        ``int64[CELLS]``, zeroed: the memory of the counters, which two processes may share. By default
        private memory.

    Attributes
    ----------
    agent_steps, env_frames
        Transitions of training environments, and the frames that they took (action repeat); written by
        the inference loop.
    updates, trained_steps
        Optimizer steps, and valid transitions that they trained on; written by the training loop. The
        number of updates is the version of the weights.
    next_evaluation
        Agent steps at which the next evaluation round opens; written by the inference loop.
    """

    CELLS = 7
    agent_steps = _Counter(0)
    env_frames = _Counter(1)
    updates = _Counter(2)
    trained_steps = _Counter(3)
    next_evaluation = _Counter(4)
    _milliseconds_before = _Counter(5)  # that earlier attempts at this run took
    _started_at = _Counter(6)  # milliseconds of the monotonic clock, which the processes of a machine share

    def __init__(self, cells: NDArray[np.int64] | None = None) -> None:
        self.cells = np.zeros(self.CELLS, np.int64) if cells is None else cells
        if not self._started_at:
            self._started_at = _now()

    @property
    def seconds(self) -> float:
        """Seconds of training, over all attempts at the run."""
        return (self._milliseconds_before + _now() - self._started_at) / 1000

    def to_json(self) -> dict[str, float]:
        """The counters as they are now."""
        return {
            "agent_steps": self.agent_steps,
            "env_frames": self.env_frames,
            "updates": self.updates,
            "trained_steps": self.trained_steps,
            "next_evaluation": self.next_evaluation,
            "seconds": self.seconds,
        }

    def go_on_from(self, values: Mapping[str, float]) -> None:
        """Take over saved counters."""
        self.agent_steps = int(values["agent_steps"])
        self.env_frames = int(values["env_frames"])
        self.updates = int(values["updates"])
        self.trained_steps = int(values["trained_steps"])
        self.next_evaluation = int(values["next_evaluation"])
        self._milliseconds_before = round(1000 * float(values["seconds"]))


def _now() -> int:
    return time.monotonic_ns() // 1_000_000

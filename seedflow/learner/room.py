"""Which groups there is room to record, where slots are scarce."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from seedflow.learner.recording import Recorder


class Room:
    """Hands out the free slots or buffers of a recorder to the groups of a batch.

    When training is slower than the environments, slots come free one update at a time. If as many groups
    went on each time, these few would make up the batches until their unrolls end, and a small batch costs
    the network more an environment than a large one. So from the moment when one group finds no room, none
    is given any until training has used up what is queued, but for what keeps it busy meanwhile
    (`Recorder.crowded`). Then there is room for many groups, which go on together.

    Groups that need no slot go on at any time. Nothing can stand still: as long as groups are kept waiting,
    training has a whole batch to take, and taking it ends the crowd.

    Parameters
    ----------
    recorder
        Where the groups are recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._free = recorder.take_back()
        self._closed = False

    def look(self) -> None:
        """Take in what training has freed; a new batch begins."""
        self._free = self._recorder.take_back()
        self._closed = self._closed and self._recorder.crowded

    def take(self, rows: NDArray[np.int64]) -> bool:
        """Whether this batch can record one more index of each of `rows`; if so, takes the room for it."""
        needed = self._recorder.needed(rows)
        if needed == 0:
            return True
        if self._closed or needed > self._free:
            self._closed = self._recorder.crowded
            return False
        self._free -= needed
        return True

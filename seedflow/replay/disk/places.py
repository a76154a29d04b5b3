"""Which sequences the chunks of several segments make up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import CheckpointDamaged
from seedflow.replay.chunks import ARRAY_OVERHEAD, CHUNK_OVERHEAD
from seedflow.replay.disk.segments import StoredChunks
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Sequences


class Places:
    """All stored chunks in order of lane and position, so that a sequence is a range.

    Attributes
    ----------
    ids, segments, rows
        Of each chunk: its id, and where it is stored.
    encoded, has_state
        Of each chunk: bytes as stored, and whether core state is among them.
    """

    def __init__(self, stored: Sequence[StoredChunks], spec: ReplaySpec) -> None:
        self._spec, self._length = spec, spec.chunks_per_sequence
        lanes = _joined([chunks.lanes for chunks in stored])
        positions = _joined([chunks.positions for chunks in stored])
        order = np.lexsort((positions, lanes))
        lanes, self._positions = lanes[order], positions[order]
        self.ids = _joined([chunks.ids for chunks in stored])[order]
        self.segments = _joined([np.full(len(chunks.ids), n) for n, chunks in enumerate(stored)])[order]
        self.rows = _joined([np.arange(len(chunks.ids)) for chunks in stored])[order]
        arrays = _joined([(chunks.sizes >= 0).sum(axis=0) for chunks in stored])
        encoded = _joined([chunks.nbytes for chunks in stored])
        self.encoded, self.has_state = encoded[order], arrays[order] > len(spec.fields)
        self._memory = (encoded + arrays * ARRAY_OVERHEAD + CHUNK_OVERHEAD)[order]
        self._by_id = np.argsort(self.ids, kind="stable")
        if (np.diff(self.ids[self._by_id]) == 0).any():
            raise CheckpointDamaged("two chunks have the same id")
        same_lane, step = np.diff(lanes) == 0, np.diff(self._positions)
        if (same_lane & (step == 0)).any():
            raise CheckpointDamaged("two chunks are at the same place of a lane")
        breaks = (
            np.flatnonzero(~(same_lane & (step == 1))) + 1
        )  # where a chunk does not follow the one before
        self._run = np.zeros(len(order), np.int64)
        self._run[breaks] = 1
        self._run = np.cumsum(self._run)
        self._run_end = np.append(breaks, len(order))

    def find(self, sequences: Sequences) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where every sequence begins, and whether it has all its chunks; int64 and bool [n]."""
        if len(self.ids) == 0:
            return np.zeros(len(sequences), np.int64), np.zeros(len(sequences), np.bool_)
        found = np.searchsorted(self.ids, sequences.first_chunk, sorter=self._by_id).clip(
            0, len(self.ids) - 1
        )
        begins = self._by_id[found]
        known = self.ids[begins] == sequences.first_chunk
        if (known & (self._positions[begins] * self._spec.chunk % self._spec.period != 0)).any():
            raise CheckpointDamaged("a sequence begins at a chunk where none can begin")
        order = np.argsort(begins[known], kind="stable")
        within = np.diff(self._run[begins[known]][order]) == 0
        if (within & (np.diff(sequences.generation[known][order]) <= 0)).any() or (
            len(np.unique(begins[known])) != known.sum()
        ):
            raise CheckpointDamaged("the sequences of a lane are not in its order")
        return begins, known & (self._run_end[self._run[begins]] - begins >= self._length)

    def covered(self, begins: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which chunks the sequences that begin there have."""
        edges = np.zeros(len(self.ids) + 1, np.int64)
        np.add.at(edges, begins, 1)
        np.subtract.at(edges, begins + self._length, 1)
        covered: NDArray[np.bool_] = np.cumsum(edges)[:-1] > 0
        return covered

    def touched(self, begins: NDArray[np.int64], marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of the sequences that begin there have a marked chunk."""
        before = np.append(0, np.cumsum(marked))
        touched: NDArray[np.bool_] = before[np.minimum(begins + self._length, len(marked))] > before[begins]
        return touched

    def room(
        self,
        begins: NDArray[np.int64],
        complete: NDArray[np.bool_],
        capacity: int | None,
        max_bytes: int | None,
    ) -> int:
        """How many of the newest sequences there is room for."""
        most = len(begins) if capacity is None else min(capacity, len(begins))
        if max_bytes is None:
            return most
        before = np.append(0, np.cumsum(self._memory)).tolist()
        counted: dict[int, int] = {}  # of a run: from where on its chunks are counted
        used = 0
        for number in range(most):
            if not complete[-1 - number]:
                continue
            begin = int(begins[-1 - number])
            run = int(self._run[begin])
            used += before[min(begin + self._length, counted.get(run, len(self.ids)))] - before[begin]
            counted[run] = begin
            if used > max_bytes:
                return number
        return most


def _joined(arrays: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays])

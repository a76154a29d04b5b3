"""Chunks in the making, and the loop that inserts them: encoding is kept off the inference path.

The inference side writes one index of many environments at a time into preallocated chunk buffers
(`Arrivals`). Full buffers go through a bounded ring to the `InsertLoop`, which encodes them, inserts them
and gives the buffers back. Where the replay's limiter or slow encoding holds the loop up, buffers run out
and inference waits: nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import ConfigError, SeedflowError
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.rollout import IndexRing
from seedflow.rollout.slots import Completion, Placement
from seedflow.specs import ArraySpec

Array = NDArray[np.generic]


class Arrivals:
    """Chunk buffers: where each lane's next index goes, and which chunks are full.

    A lane is a row of environments' state: an int from 0. With ``spec.bootstrap`` the index that ends a chunk
    also begins the lane's next one, and is copied there.

    Invariant: a buffer is in exactly one place: free, held by one lane, in the ring of filled ones, or on
    its way back. Chunks and ends of one lane reach the ring in order.

    Parameters
    ----------
    spec
        The arrays of a chunk.
    lanes
        How many lanes there may be.
    buffers
        How many chunks, at least `least` of them.
    passing
        Further fields that are there when a chunk's priority is computed, and not kept.
    allocate, ring
        What gives the memory, with the arguments of `numpy.zeros`, and the rings, of a capacity. A process
        that only inserts may so share them with one that only writes.

    Attributes
    ----------
    fields
        Name to array ``[buffers, rows, ...]``, those that pass through included.
    state
        Core state fed at a chunk's first index, arrays ``[buffers, ...]``.
    filled, freed
        Rings to and from the insert loop.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        lanes: int,
        buffers: int,
        passing: Sequence[ArraySpec] = (),
        allocate: Callable[..., Array] = np.zeros,
        ring: Callable[[int], IndexRing] = IndexRing,
    ) -> None:
        if buffers < self.least(spec, lanes, 1):
            raise ConfigError(
                f"{buffers} chunk buffers for {lanes} environments: expected at least "
                f"{self.least(spec, lanes, 1)}, one for each and one that is inserted"
            )
        self.spec, self.buffers = spec, buffers
        fields = (*spec.fields, *passing)
        self.fields = {a.name: allocate((buffers, spec.rows, *a.shape), a.dtype) for a in fields}
        self.state = tuple(allocate((buffers, *a.shape), a.dtype) for a in spec.state)
        # An end is queued behind a chunk of its lane: at most one for each chunk in the ring, and one for
        # each lane whose chunk was taken already.
        self.filled = ring(2 * buffers + lanes)
        self.freed = ring(buffers)
        self._free = deque(range(buffers))
        self._buffer = np.full(lanes, -1, np.int64)
        self._time = np.zeros(lanes, np.int64)
        self._queued = np.zeros(lanes, bool)  # whether a chunk was queued since the lane's last end

    @staticmethod
    def least(spec: ReplaySpec, lanes: int, group: int) -> int:
        """Buffers without which a run could stop for good, where `group` lanes are written at once."""
        return lanes + group

    @staticmethod
    def nbytes(spec: ReplaySpec, buffers: int) -> int:
        """Bytes that the buffers take."""
        return buffers * spec.raw_bytes()

    @property
    def idle(self) -> int:
        """As `free`, for others than the writer to look at."""
        return len(self._free) + len(self.freed)

    @property
    def free(self) -> int:
        """Buffers that nobody holds."""
        self._free.extend(self.freed.take(self.buffers))
        return len(self._free)

    def needed(self, lanes: NDArray[np.int64]) -> int:
        """Free buffers that one more index of each of `lanes` takes."""
        begin = np.count_nonzero(self._buffer[lanes] < 0)
        if not self.spec.bootstrap:
            return int(begin)
        return int(begin + np.count_nonzero(self._time[lanes] == self.spec.rows - 1))

    def place(self, lanes: NDArray[np.int64]) -> Placement:
        """Say where the next index of each lane goes; `Placement.slots` are buffers.

        Raises
        ------
        SeedflowError
            For a lane named twice, or with fewer free buffers than `needed`; nothing is changed then.
        """
        if len(np.unique(lanes)) != len(lanes):
            raise SeedflowError(f"a lane appears twice in one batch: {sorted(lanes.tolist())}")
        if self.needed(lanes) > self.free:
            raise SeedflowError(f"{self.needed(lanes)} chunk buffers are needed and {self.free} are free")
        for lane in lanes[self._buffer[lanes] < 0].tolist():
            self._buffer[lane] = self._free.popleft()
            self._time[lane] = 0
        times = self._time[lanes]
        return Placement(self._buffer[lanes], times, times == 0)

    def write(self, placement: Placement, values: Mapping[str, Array]) -> None:
        """Write some of the fields, each ``[n, ...]``, of the index that was placed."""
        for name, value in values.items():
            self.fields[name][placement.slots, placement.times] = value

    def advance(self, lanes: NDArray[np.int64], state: Sequence[Array]) -> Completion:
        """Count the placed index as written; queue the chunks that are full.

        Parameters
        ----------
        lanes
            As they were placed.
        state
            Core states ``[n, ...]`` that were fed at this index: kept where it begins a chunk.

        Returns
        -------
        Completion
            Which chunks became full; `following` is -1 where the lane's next one has no buffer yet.
        """
        times = self._time[lanes]
        self._keep_state(self._buffer[lanes], state, np.flatnonzero(times == 0))
        rows = np.flatnonzero(times == self.spec.rows - 1)
        self._time[lanes] = times + 1
        full = lanes[rows]
        ready = self._buffer[full]
        following = np.full(len(full), -1, np.int64)
        if self.spec.bootstrap and len(full):
            following[:] = [self._free.popleft() for _ in range(len(full))]
            for field in self.fields.values():
                field[following, 0] = field[ready, -1]
            for table, value in zip(self.state, state, strict=True):
                table[following] = value[rows]
        self._buffer[full], self._time[full] = following, self.spec.bootstrap
        self._queued[full] = True
        if len(full):
            self.filled.put((full * self.buffers + ready).tolist())
        return Completion(rows, ready, following)

    def drop(self, lanes: NDArray[np.int64]) -> int:
        """End lanes: their partial chunks are given up; returns how many there were."""
        held = lanes[self._buffer[lanes] >= 0]
        self._free.extend(self._buffer[held].tolist())
        self._buffer[held], self._time[lanes] = -1, 0
        ended = lanes[self._queued[lanes]]
        self._queued[ended] = False
        if len(ended):
            self.filled.put((-1 - ended).tolist())
        return len(held)

    def entry(self, item: int) -> tuple[int, int | None]:
        """Lane and buffer that an item of `filled` stands for; no buffer: the lane ended."""
        return (-1 - item, None) if item < 0 else divmod(item, self.buffers)

    def close(self) -> None:
        """Release the rings."""
        self.filled.close()
        self.freed.close()

    def _keep_state(self, buffers: NDArray[np.int64], state: Sequence[Array], rows: NDArray[np.intp]) -> None:
        if len(rows):
            for table, value in zip(self.state, state, strict=True):
                table[buffers[rows]] = value[rows]


class InitialPriority(Protocol):
    """Computes the priority of a sequence when its last chunk arrives."""

    def chunk(self, lane: int, fields: Mapping[str, Array], completes: bool) -> float | None:
        """Take a lane's next chunk; return the priority (before the exponent) where it completes a sequence.

        The arrays are those of the chunk's buffer: copy what must last. None gives the sequence the
        largest priority so far.
        """

    def end_lane(self, lane: int) -> None:
        """Forget a lane."""


class InsertLoop:
    """Encodes filled chunks and inserts them, as far as the limiter lets it.

    Parameters
    ----------
    arrivals
        Where the chunks come from.
    replay
        Where they go.
    priority
        Gives new sequences their priorities; by default they get the largest so far.
    buffers_freed
        Called after buffers went back: inference may be waiting for them.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        replay: Replay,
        priority: InitialPriority | None = None,
        buffers_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self._arrivals, self._replay = arrivals, replay
        self._priority, self._buffers_freed = priority, buffers_freed
        self._next: int | None = None  # an item that was taken and could not be inserted yet

    @property
    def held_up(self) -> bool:
        """Whether a chunk waits for the limiter's leave."""
        return self._next is not None

    def step(self, most: int = 16) -> int:
        """Insert what is there, at most `most` chunks; never waits. Returns how many it dealt with."""
        for done in range(most):
            if self._next is None:
                taken = self._arrivals.filled.take(1)
                if not taken:
                    return done
                (self._next,) = taken
            lane, buffer = self._arrivals.entry(self._next)
            if buffer is None:
                self._end(lane)
            elif not self._insert(lane, buffer):
                return done
            self._next = None
        return most

    def wait(self, timeout: float) -> None:
        """Wait for what was missing at the last step: chunks, or the limiter's leave."""
        if self._next is None:
            self._arrivals.filled.wait(timeout)
        else:
            self._replay.wait_insert(timeout)

    def _insert(self, lane: int, buffer: int) -> bool:
        completes = self._replay.completes(lane)
        if completes and not self._replay.can_insert:
            return False
        fields = {name: field[buffer] for name, field in self._arrivals.fields.items()}
        state = [table[buffer] for table in self._arrivals.state]
        priority = None if self._priority is None else self._priority.chunk(lane, fields, completes)
        self._replay.insert(lane, fields, state, priority)
        self._arrivals.freed.put([buffer])
        self._buffers_freed()
        return True

    def _end(self, lane: int) -> None:
        self._replay.end_lane(lane)
        if self._priority is not None:
            self._priority.end_lane(lane)

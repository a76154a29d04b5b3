"""Which sequences a chunk completes: the open lanes, a state machine without I/O.

Examples
--------
Sequences of two chunks that begin at every chunk:

>>> from seedflow.specs import ArraySpec
>>> import numpy as np
>>> reward = ArraySpec("reward", (), np.dtype("float32"))
>>> lanes = Lanes(ReplaySpec((reward,), (), chunk=5, burn_in=5, unroll=5, period=5))
>>> number, position = lanes.next("left")
>>> lanes.append("left", Chunk(0, number, position, (b"",))).sequence
>>> lanes.completes("left")
True
>>> number, position = lanes.next("left")
>>> [chunk.id for chunk in lanes.append("left", Chunk(1, number, position, (b"",))).sequence]
[0, 1]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from seedflow.nested import Arrays, numbers, part
from seedflow.replay.chunks import Chunk
from seedflow.replay.layout import ReplaySpec


@dataclass(frozen=True)
class Appended:
    """What a chunk brought about.

    Attributes
    ----------
    sequence
        The chunks of the sequence that it completes, or None.
    released
        Chunks that no later sequence of the lane will hold.
    """

    sequence: tuple[Chunk, ...] | None
    released: tuple[Chunk, ...]


@dataclass
class _Lane:
    number: int
    position: int = 0
    pending: deque[Chunk] = field(default_factory=deque)


class Lanes:
    """The open lanes by key, each with the chunks that a later sequence may still hold.

    A key (an environment, say) has one open lane at most. A lane that ended is never continued: the key's
    next chunk begins another, with a number of its own.

    Parameters
    ----------
    spec
        Geometry of the sequences.
    """

    def __init__(self, spec: ReplaySpec) -> None:
        self._spec = spec
        self._step = spec.period // spec.chunk  # chunks between the beginnings of two sequences
        self._lanes: dict[Hashable, _Lane] = {}
        self.next_number = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def next(self, key: Hashable) -> tuple[int, int]:
        """Lane number and position of a key's next chunk; opens a lane where there is none."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(self.next_number)
            self.next_number += 1
        return lane.number, lane.position

    def continues(self, key: Hashable, number: int, position: int) -> bool:
        """Whether a chunk would be the next of its lane, which is still open."""
        lane = self._lanes.get(key)
        return lane is not None and (lane.number, lane.position) == (number, position)

    def completes(self, key: Hashable) -> bool:
        """Whether the key's next chunk completes a sequence."""
        lane = self._lanes.get(key)
        return self._completes(0 if lane is None else lane.position)

    def append(self, key: Hashable, chunk: Chunk) -> Appended:
        """Add the next chunk of a key's open lane."""
        lane = self._lanes[key]
        lane.pending.append(chunk)
        lane.position += 1
        first = chunk.position - self._spec.chunks_per_sequence + 1
        sequence = None
        if self._completes(chunk.position):
            sequence = tuple(c for c in lane.pending if c.position >= first)
        keep = max(0, -(-(first + 1) // self._step) * self._step)  # where the next sequence begins
        released = []
        while lane.pending and lane.pending[0].position < keep:
            released.append(lane.pending.popleft())
        return Appended(sequence, tuple(released))

    def end(self, key: Hashable) -> tuple[Chunk, ...]:
        """End a key's lane, if it has one; returns the chunks that it held."""
        lane = self._lanes.pop(key, None)
        return () if lane is None else tuple(lane.pending)

    def state(self) -> Arrays:
        """The open lanes, whose keys are whole numbers, see `seedflow.nested`."""
        arrays: Arrays = {}
        for key, lane in self._lanes.items():
            arrays[f"{key}/lane"] = numbers(lane.number, lane.position)
            for i, chunk in enumerate(lane.pending):
                arrays[f"{key}/{i}/chunk"] = numbers(chunk.id, chunk.position, len(chunk.data))
                for k, data in enumerate(chunk.data):
                    arrays[f"{key}/{i}/{k}"] = np.frombuffer(bytearray(data), np.uint8)
        return arrays

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        self._lanes = {}
        for key in sorted({int(name.split("/")[0]) for name in arrays}):
            mine = part(arrays, str(key))
            number, position = mine["lane"].tolist()
            lane = self._lanes[key] = _Lane(number, position)
            while (head := mine.get(f"{len(lane.pending)}/chunk")) is not None:
                identity, place, count = head.tolist()
                i = len(lane.pending)
                data = tuple(mine[f"{i}/{k}"].tobytes() for k in range(count))
                lane.pending.append(Chunk(identity, number, place, data))

    def pending(self) -> Iterator[Chunk]:
        """The chunks that open lanes hold."""
        for lane in self._lanes.values():
            yield from lane.pending

    def _completes(self, position: int) -> bool:
        first = position - self._spec.chunks_per_sequence + 1
        return first >= 0 and self._spec.begins(first)

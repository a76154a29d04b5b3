"""Indices between two loops on a GPU: each comes with the event of the work behind it."""

from __future__ import annotations

from collections.abc import Iterable

from seedflow.learner.streams import Event, Stream
from seedflow.rollout import IndexRing


class StreamRing(IndexRing):
    """A ring between two loops of one process that work on streams of their own.

    What the producer's stream was given before `put` comes before what the consumer's is given after `take`.
    The host waits for neither.

    Parameters
    ----------
    capacity
        Indices held at most.
    source, target
        The producer's and the consumer's stream.
    """

    def __init__(self, capacity: int, source: Stream, target: Stream) -> None:
        super().__init__(capacity)
        self._source, self._target = source, target
        self._behind: dict[int, Event] = {}  # by index; written before it is put, removed after it is taken

    def put(self, indices: Iterable[int]) -> None:
        """See `IndexRing.put`."""
        indices = list(indices)
        event = self._source.record()
        self._behind.update(dict.fromkeys(indices, event))
        super().put(indices)

    def take(self, most: int) -> list[int]:
        """See `IndexRing.take`."""
        taken = super().take(most)
        for event in {id(event): event for event in map(self._behind.pop, taken)}.values():
            self._target.wait(event)
        return taken

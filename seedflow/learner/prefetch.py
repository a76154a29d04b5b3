"""The prefetch loop: from finished unrolls to batches."""

from __future__ import annotations

from collections.abc import Callable

from seedflow.learner.streams import Stream
from seedflow.rollout import IndexRing, UnrollStorage
from seedflow.rollout.storage import UnrollBatch


class PrefetchLoop:
    """Gathers B finished unrolls into a preallocated batch and gives their slots back.

    Parameters
    ----------
    storage
        Memory of the unrolls.
    unrolls
        Ring of finished slots, filled by the inference loop.
    freed
        Ring of slots that inference may write again.
    batches
        ``prefetch + 1`` preallocated batches.
    filled, empty
        Rings of batch indices to and from the training loop.
    slots_freed
        Called after slots went onto `freed`: inference may be waiting for them.
    stream
        Where batches are gathered.
    """

    def __init__(
        self,
        storage: UnrollStorage,
        batch: int,
        unrolls: IndexRing,
        freed: IndexRing,
        batches: list[UnrollBatch],
        filled: IndexRing,
        empty: IndexRing,
        slots_freed: Callable[[], None],
        stream: Stream,
    ) -> None:
        self._storage, self._batch = storage, batch
        self._unrolls, self._freed = unrolls, freed
        self._batches, self._filled, self._empty = batches, filled, empty
        self._slots_freed, self._stream = slots_freed, stream

    def step(self) -> bool:
        """Assemble one batch if there are unrolls and room for it; returns whether it did."""
        if len(self._unrolls) < self._batch or not len(self._empty):
            return False
        slots = self._unrolls.take(self._batch)
        (index,) = self._empty.take(1)
        self._stream.submit(lambda: self._storage.gather(slots, self._batches[index]))
        self._freed.put(slots)
        self._slots_freed()
        self._filled.put([index])
        return True

    def wait(self, timeout: float) -> None:
        """Wait for what was missing at the last step: unrolls, or an empty batch."""
        (self._unrolls if len(self._unrolls) < self._batch else self._empty).wait(timeout)

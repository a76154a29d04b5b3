"""Batches of sequences: their memory, and decoding chunks straight into it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import ConfigError, DamagedChunk
from seedflow.replay.chunks import Chunk
from seedflow.replay.codec import CHECKSUM_BYTES, decode_bytes, is_sound
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.limiter import LimiterStatus
from seedflow.specs import ArraySpec


class SequenceBatch:
    """Preallocated memory for B sequences, batch first.

    Parameters
    ----------
    spec
        What a sequence holds.
    size
        B.

    Attributes
    ----------
    fields
        Name to array ``[B, length, ...]``. Time first, as networks want it, is a transposed view.
    state
        Core state fed at index 0 of each sequence, arrays ``[B, ...]``.
    """

    def __init__(self, spec: ReplaySpec, size: int) -> None:
        if size < 1:
            raise ConfigError(f"a batch of {size} sequences: expected at least 1")
        self.spec, self.size = spec, size
        self.fields = {a.name: np.zeros((size, spec.length, *a.shape), a.dtype) for a in spec.fields}
        self.state = tuple(np.zeros((size, *a.shape), a.dtype) for a in spec.state)
        self._fields = [_target(spec, array, self.fields[array.name]) for array in spec.fields]
        state = zip(spec.state, self.state, strict=True)
        self._all = self._fields + [_target(spec, array, table) for array, table in state]

    @property
    def nbytes(self) -> int:
        """Bytes that the batch takes."""
        return sum(array.nbytes for array in (*self.fields.values(), *self.state))

    def decode(self, row: int, chain: Sequence[Chunk]) -> None:
        """Decode the chunks of one sequence into a row.

        Raises
        ------
        DamagedChunk
            When one is not what was stored; names chunk and array.
        """
        # Most arrays are small: what is done for each of them costs more than their bytes do.
        for k, chunk in enumerate(chain):
            targets = self._fields if k else self._all
            for target, data in zip(targets, chunk.data, strict=False):
                begin = row * target.row + k * target.step
                size = target.size
                if not target.compressed and len(data) == size + CHECKSUM_BYTES and is_sound(data):
                    target.out[begin : begin + size] = data[:size]
                    continue
                try:
                    decode_bytes(data, target.out[begin : begin + size], target.compressed)
                except DamagedChunk as error:
                    raise DamagedChunk(f"chunk {chunk.id} of the replay, {target.name}: {error}") from error


class _Target(NamedTuple):
    """Where one array of a chunk goes within a batch, in bytes."""

    name: str
    compressed: bool
    out: memoryview
    row: int  # from one row of the batch to the next
    step: int  # from one chunk of a sequence to the next
    size: int  # of a chunk


def _target(spec: ReplaySpec, array: ArraySpec, batch: NDArray[np.generic]) -> _Target:
    out = batch.reshape(-1).view(np.uint8).data
    row = len(out) // len(batch)
    size = array.nbytes * (1 if array in spec.state else spec.rows)
    return _Target(array.name, spec.compressed(array), out, row, spec.chunk * array.nbytes, size)


@dataclass(frozen=True)
class Sample:
    """A batch that was drawn.

    Attributes
    ----------
    batch
        The sequences; memory of the caller, overwritten when it samples into it again.
    generations
        int64 ``[B]``: which sequences they are, for `Replay.update_priorities`.
    indices
        int64 ``[B]``: their slots in the sum tree.
    probabilities
        float64 ``[B]``: P(i), with which a draw took them.
    weights
        float32 ``[B]``: importance weights over the largest of them.
    """

    batch: SequenceBatch
    generations: NDArray[np.int64]
    indices: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    weights: NDArray[np.float32]


@dataclass(frozen=True)
class NotYet:
    """Nothing was sampled, and why: too few sequences, or too many samples for them.

    It is false, so that a caller can write ``if sample := replay.sample(batch):``.
    """

    status: LimiterStatus
    closed: bool = False

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "the replay is closed" if self.closed else str(self.status)


class Decoder:
    """Decodes a batch by several threads; almost all of it runs without the GIL.

    Parameters
    ----------
    threads
        How many decode one batch, the calling one included.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "seedflow-decode") if threads > 1 else None

    def decode(self, chains: Sequence[tuple[Chunk, ...]], out: SequenceBatch) -> None:
        """Decode one sequence into each row of a batch.

        Raises
        ------
        DamagedChunk
            When a chunk is not what was stored.
        """
        others = min(self._threads, len(chains)) - 1
        if self._pool is None or others == 0:
            self._part(chains, out, 0, 1)
            return
        parts = [self._pool.submit(self._part, chains, out, i, others + 1) for i in range(1, others + 1)]
        try:
            self._part(chains, out, 0, others + 1)
        finally:
            failures = [
                part.exception() for part in parts
            ]  # the batch is the caller's again: all must be done
        for failure in failures:
            if failure is not None:
                raise failure

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    @staticmethod
    def _part(chains: Sequence[tuple[Chunk, ...]], out: SequenceBatch, begin: int, step: int) -> None:
        for row in range(begin, len(chains), step):
            out.decode(row, chains[row])

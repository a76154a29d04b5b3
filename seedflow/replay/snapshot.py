"""All that a checkpoint of the replay holds, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import CheckpointError
from seedflow.replay.chunks import Chunk
from seedflow.replay.layout import ReplaySpec


@dataclass(frozen=True)
class Sequences:
    """The sequences held, oldest first; arrays of one length.

    Attributes
    ----------
    generation
        int64: a sequence's number in order of insertion, never used again.
    first_chunk
        int64: id of its first chunk. The others are those that follow in the same lane.
    priority
        float64: before the exponent.
    """

    generation: NDArray[np.int64]
    first_chunk: NDArray[np.int64]
    priority: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.generation)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Sequences:
        return Sequences(self.generation[part], self.first_chunk[part], self.priority[part])


@dataclass(frozen=True)
class Snapshot:
    """The replay at one moment.

    Attributes
    ----------
    spec
        The arrays of every chunk.
    chunks
        Every chunk that a sequence refers to, in order of id. What open lanes hold beyond that is not
        in it: all lanes of a restored replay have ended.
    sequences
        Which sequences there are, and their priorities.
    state
        The rest, fit for JSON: next ids, counters, the limiter's balance, the state of the random generator.
    """

    spec: ReplaySpec
    chunks: tuple[Chunk, ...]
    sequences: Sequences
    state: dict[str, Any]


@dataclass(frozen=True)
class ReplayState:
    """`Snapshot.state` as a value.

    Attributes
    ----------
    next_chunk, next_lane, next_sequence
        Numbers that were not used yet.
    counters
        What happened so far, see `Replay.metrics`.
    largest_priority
        Of all sequences so far.
    limiter, random
        States of the limiter and of the random generator.
    """

    next_chunk: int
    next_lane: int
    next_sequence: int
    counters: dict[str, int]
    largest_priority: float
    limiter: dict[str, Any]
    random: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, untrusted: Any) -> ReplayState:
        """Read what `to_json` wrote.

        Raises
        ------
        CheckpointError
            When it is anything else.
        """
        try:
            chunk, lane, sequence = (
                _count(untrusted[f"next_{name}"]) for name in ("chunk", "lane", "sequence")
            )
            counters = {str(name): _count(value) for name, value in untrusted["counters"].items()}
            largest = float(untrusted["largest_priority"])
            limiter, random = dict(untrusted["limiter"]), dict(untrusted["random"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"this is no state of a replay: {error!r}") from error
        if not 0.0 <= largest < np.inf:
            raise CheckpointError(f"the replay's largest priority is {largest}: expected a finite number")
        return cls(chunk, lane, sequence, counters, largest, limiter, random)


def _count(untrusted: Any) -> int:
    if type(untrusted) is not int or not 0 <= untrusted < 2**62:
        raise ValueError(f"{untrusted!r} is no count")
    return untrusted


def chains(spec: ReplaySpec, chunks: Iterable[Chunk], sequences: Sequences) -> list[tuple[Chunk, ...] | None]:
    """Find the chunks of every sequence; None for a sequence that lacks one.

    Raises
    ------
    CheckpointError
        When the chunks and sequences cannot come from one replay: two chunks with one id or place,
        generations that do not ascend, an array too few, a sequence that begins where none can.
    """
    by_id: dict[int, Chunk] = {}
    by_place: dict[tuple[int, int], Chunk] = {}
    for chunk in chunks:
        if chunk.id in by_id or (chunk.lane, chunk.position) in by_place:
            raise CheckpointError(f"chunk {chunk.id} (lane {chunk.lane}, {chunk.position}) is there twice")
        expected = len(spec.arrays if spec.begins(chunk.position) else spec.fields)
        if len(chunk.data) != expected:
            raise CheckpointError(f"chunk {chunk.id} has {len(chunk.data)} arrays instead of {expected}")
        by_id[chunk.id] = by_place[chunk.lane, chunk.position] = chunk
    generations, priorities = sequences.generation, sequences.priority
    if len({len(generations), len(sequences.first_chunk), len(priorities)}) != 1:
        raise CheckpointError("the columns of the table of sequences have different lengths")
    if len(generations) and (generations[0] < 0 or (np.diff(generations) <= 0).any()):
        raise CheckpointError("the generations of the sequences do not ascend from 0 or more")
    if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
        raise CheckpointError("a sequence's priority is negative or not finite")
    found: list[tuple[Chunk, ...] | None] = []
    for first in sequences.first_chunk.tolist():
        head = by_id.get(first)
        if head is not None and not spec.begins(head.position):
            raise CheckpointError(f"a sequence begins at chunk {first}, which is no beginning")
        found.append(None if head is None else _chain(spec, by_place, head))
    return found


def _chain(spec: ReplaySpec, by_place: dict[tuple[int, int], Chunk], head: Chunk) -> tuple[Chunk, ...] | None:
    chain = [head]
    for position in range(head.position + 1, head.position + spec.chunks_per_sequence):
        chunk = by_place.get((head.lane, position))
        if chunk is None:
            return None
        chain.append(chunk)
    return tuple(chain)

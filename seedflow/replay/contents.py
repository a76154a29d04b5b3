"""What the replay holds: lanes, chunks, sequences, limiter and random generator as one state machine.

It knows nothing of threads, encoding or decoding; `seedflow.replay.replay` adds these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from seedflow.config import ReplayConfig
from seedflow.errors import CheckpointError, ReplayFull
from seedflow.nested import Arrays
from seedflow.replay.chunks import Chunk, ChunkStore
from seedflow.replay.lanes import Lanes
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.limiter import Limiter
from seedflow.replay.memory import gib
from seedflow.replay.snapshot import ReplayState, Sequences, Snapshot, chains
from seedflow.replay.table import SequenceTable

COUNTERS = ("inserted", "sampled", "evicted", "evicted_for_memory", "stale", "raw_bytes", "encoded_bytes")


@dataclass(frozen=True)
class Draw:
    """Sequences that were drawn; `size` is how many there were to draw from."""

    slots: NDArray[np.int64]
    generations: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    chains: list[tuple[Chunk, ...]]
    size: int


PORTION = 2_048
"""Chunks that a copy takes at once."""


@dataclass
class Copy:
    """A snapshot in the making: numbers of one moment, and its chunks as they are gathered.

    To touch every chunk takes long where there are hundreds of thousands: most are in no cache. So they are
    gathered in portions, and what goes meanwhile is in `left`.
    """

    spec: ReplaySpec
    ids: range
    left: list[Chunk]
    unused: set[int]
    sequences: Sequences
    state: ReplayState
    chunks: list[Chunk] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        there = [*self.chunks, *(chunk for chunk in self.left if chunk.id < self.state.next_chunk)]
        used = {chunk.id: chunk for chunk in there if chunk.id not in self.unused}
        return Snapshot(self.spec, tuple(used[i] for i in sorted(used)), self.sequences, self.state.to_json())


class Contents:
    """Everything that a lock must guard.

    Invariant: every sequence held is one unbroken run of a lane, and the chunks' memory never exceeds the
    limit.

    Parameters
    ----------
    spec, config
        Of the replay.
    seed
        Of the draws.
    limit
        Bytes that the chunks may take.
    least
        Sequences that must be there to sample from.
    report
        Takes what a user should read.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        config: ReplayConfig,
        seed: np.random.SeedSequence,
        limit: int,
        least: int,
        report: Callable[[str], None],
    ) -> None:
        self.spec, self._config, self._report = spec, config, report
        self._limit, self._least = limit, least
        self._store = ChunkStore()
        self._next_chunk = 0
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._said_full = False
        self.lanes = Lanes(spec)
        self.table = SequenceTable(config.capacity, config.priority_exponent, self._store)
        self.limiter = Limiter(config.min_size, config.samples_per_insert, config.tolerance)
        self.counters = dict.fromkeys(COUNTERS, 0)

    @property
    def chunks(self) -> int:
        """Chunks held, those of open lanes included."""
        return len(self._store)

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return self._store.nbytes

    def append(self, key: Hashable, data: tuple[bytes, ...], priority: float | None) -> int | None:
        """Add the next chunk of a key's open lane; returns the generation of the sequence it completes.

        Raises
        ------
        ReplayFull
            When the memory limit does not hold as many sequences as must be there.
        """
        number, position = self.lanes.next(key)
        chunk = Chunk(self._next_chunk, number, position, data)
        self._make_room(chunk.nbytes)
        self._next_chunk += 1
        self.counters["raw_bytes"] += self.spec.raw_bytes(position)
        self.counters["encoded_bytes"] += sum(map(len, data))
        self._store.retain(chunk)
        appended = self.lanes.append(key, chunk)
        generation = None
        if appended.sequence is not None:
            size = self.table.size
            generation = self.table.append(
                appended.sequence, self.table.priorities.largest if priority is None else priority
            )
            self.limiter.inserted(size)
            self.counters["inserted"] += 1
            self.counters["evicted"] += size + 1 - self.table.size
        for released in appended.released:
            self._store.release(released)
        return generation

    def end_lane(self, key: Hashable) -> None:
        """End a key's lane; what no sequence refers to is freed."""
        for chunk in self.lanes.end(key):
            self._store.release(chunk)

    def can_insert(self) -> bool:
        """Whether the limiter lets another sequence in."""
        return self.limiter.can_insert(self.table.size)

    def can_sample(self, batch: int) -> bool:
        """Whether the limiter lets `batch` sequences out."""
        return self.limiter.can_sample(self.table.size, batch)

    def draw(self, batch: int) -> Draw:
        """Draw sequences by priority and count them as sampled."""
        slots, generations, probabilities = self.table.draw(self._random.random(batch))
        drawn = [self.table.chain(slot) for slot in slots.tolist()]
        self.limiter.sampled(batch)
        self.counters["sampled"] += batch
        return Draw(slots, generations, probabilities, drawn, self.table.size)

    def update(self, generations: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Give sequences new priorities; returns how many are gone."""
        stale = self.table.update(generations, priorities)
        self.counters["stale"] += stale
        return stale

    def begin_copy(self) -> Copy:
        """What a snapshot is made of, but for the chunks; quick. It ends with `end_copy`."""
        state = ReplayState(
            self._next_chunk,
            self.lanes.next_number,
            self.table.next,
            dict(self.counters),
            self.table.priorities.largest,
            self.limiter.to_json(),
            cast(dict[str, Any], self._random.bit_generator.state),
        )
        pending, sequences = list(self.lanes.pending()), self.table.sequences()
        # Where a sequence holds a chunk of an open lane, it is referred to more than once.
        unused = {chunk.id for chunk in pending if self._store.references(chunk) == 1}
        oldest = int(sequences.first_chunk.min(initial=self._next_chunk))
        ids = range(oldest, self._next_chunk)  # no chunk of a sequence is older than its first
        return Copy(self.spec, ids, self._store.watch(), unused, sequences, state)

    def go_on_copying(self, copy: Copy, begin: int) -> None:
        """Gather the chunks from ``ids[begin]`` on, a portion of them; quick."""
        copy.chunks += self._store.some(copy.ids[begin : begin + PORTION])

    def end_copy(self, copy: Copy) -> None:
        """Watch no more for chunks that go."""
        self._store.unwatch(copy.left)

    def reopen(self, arrays: Arrays) -> None:
        """After `restore`: go on with the lanes that were open, as `Lanes.state` gave them."""
        self.lanes.go_on_from(arrays)
        for chunk in self.lanes.pending():
            self._store.retain(chunk)

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with what a snapshot holds; of more than fits, the newest are kept.

        Raises
        ------
        CheckpointError
            When it does not fit the spec or is not consistent.
        """
        difference = self.spec.describe_difference(snapshot.spec)
        if difference is not None:
            raise CheckpointError(f"the checkpoint's replay is of another kind: {difference}")
        state, sequences = ReplayState.from_json(snapshot.state), snapshot.sequences
        found = chains(self.spec, snapshot.chunks, sequences)
        whole = np.array([chain is not None for chain in found], bool)
        if not whole.all():
            message = f"{np.count_nonzero(~whole)} of the checkpoint's {len(whole)} sequences lack a chunk"
            if self._config.on_damage == "error":
                raise CheckpointError(f"{message}; set replay.on_damage=drop to go on without them")
            self._report(f"replay: {message}, and are left out")
        for name, following, numbers in (
            ("next_chunk", state.next_chunk, [chunk.id for chunk in snapshot.chunks]),
            ("next_lane", state.next_lane, [chunk.lane for chunk in snapshot.chunks]),
            ("next_sequence", state.next_sequence, sequences.generation.tolist()),
        ):
            if following <= max(numbers, default=-1):
                raise CheckpointError(f"the checkpoint's {name} = {following} is in use already")
        self.limiter.restore(state.limiter)
        try:
            self._random.bit_generator.state = state.random
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"the checkpoint's random generator cannot go on: {error!r}") from error
        kept = [chain for chain in found if chain is not None]
        self.table.priorities.largest = state.largest_priority
        self.table.restore(kept, sequences[whole], state.next_sequence)
        while self._store.nbytes > self._limit:
            self.table.evict()
        if self.table.size < len(kept):
            self._report(
                f"replay: the newest {self.table.size} of the checkpoint's {len(kept)} sequences are kept"
            )
        self._next_chunk, self.lanes.next_number = state.next_chunk, state.next_lane
        self.counters = {name: state.counters.get(name, 0) for name in COUNTERS}

    def _make_room(self, nbytes: int) -> None:
        """Evict the oldest sequences until `nbytes` more fit."""
        if self._store.nbytes + nbytes <= self._limit:
            return
        size = self.table.size
        while self.table.size > self._least and self._store.nbytes + nbytes > self._limit:
            self.table.evict()
        gone = size - self.table.size
        self.counters["evicted"] += gone
        self.counters["evicted_for_memory"] += gone
        if self._store.nbytes + nbytes > self._limit:
            raise ReplayFull(
                f"the replay's memory limit of {gib(self._limit)} is reached with {self.table.size} "
                f"sequences, and {self._least} must be there to sample from (replay.min_size, train.batch): "
                "the data compresses too little; raise replay.memory_gib or lower replay.min_size"
            )
        if not self._said_full:
            self._said_full = True
            self._report(
                f"replay: the memory limit of {gib(self._limit)} is reached with {size} of "
                f"{self._config.capacity} sequences, because the data compresses too little; from now on the "
                "oldest sequences go earlier. Raise replay.memory_gib to keep more"
            )

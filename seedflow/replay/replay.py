"""The replay: prioritized sequences of compressed chunks, safe to use from several threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from seedflow.config import ReplayConfig
from seedflow.envs.seeding import env_seed
from seedflow.errors import SeedflowError, SpecError
from seedflow.nested import Arrays
from seedflow.replay.contents import PORTION, Contents
from seedflow.replay.encoding import ChunkEncoder
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.limiter import LimiterStatus
from seedflow.replay.memory import plan_memory
from seedflow.replay.priorities import check_priorities, importance_weights
from seedflow.replay.sampling import Decoder, NotYet, Sample, SequenceBatch
from seedflow.replay.snapshot import Snapshot

log = logging.getLogger(__name__)


class Replay:
    """Sequences of experience, sampled by priority.

    Chunks arrive by lane (`insert`); each may complete a sequence. Encoding and decoding happen outside of
    the lock, everything else is short.

    Invariant: every sequence held is one unbroken run of a lane; the chunks' memory never exceeds the
    limit; what was sampled and inserted stays within the limiter's band.

    Parameters
    ----------
    spec
        The arrays of a chunk and the geometry of sequences.
    config
        The settings.
    seed
        The run's seed.
    snapshot
        What to begin with. Of more than the capacity or the memory limit holds, the newest are kept.
    batch
        Sequences that training samples at once: fewer may not be held for lack of memory.
    report
        Takes what a user should read: the memory expected, and when its limit is reached.

    Raises
    ------
    ConfigError
        When the capacity cannot fit into the memory limit.
    CheckpointError
        When the snapshot does not fit the spec or is not consistent.
    """

    def __init__(
        self,
        spec: ReplaySpec,
        config: ReplayConfig,
        seed: int,
        *,
        snapshot: Snapshot | None = None,
        batch: int = 1,
        report: Callable[[str], None] = log.info,
    ) -> None:
        self.spec = spec
        self.memory = plan_memory(spec, config, report)
        """Bytes expected and allowed."""
        self._importance = config.importance_exponent
        least = min(max(config.min_size, batch), config.capacity)
        seeds = env_seed(seed, "replay", 0, 0)
        self._contents = Contents(spec, config, seeds, self.memory.limit, least, report)
        if snapshot is not None:
            self._contents.restore(snapshot)
        self._encoder = ChunkEncoder(spec)
        self._decoder = Decoder(config.decode_threads)
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._lock_ms = 0.0

    def restore(self, snapshot: Snapshot) -> None:
        """Begin with what a snapshot holds, before anything was inserted; see `snapshot` above.

        Raises
        ------
        CheckpointError
            When it does not fit the spec or is not consistent.
        """
        with self._changed:
            self._contents.restore(snapshot)

    def open_lanes(self) -> Arrays:
        """The lanes that are open, which a snapshot leaves out, see `seedflow.nested`."""
        with self._changed:
            return self._contents.lanes.state()

    def reopen(self, arrays: Arrays) -> None:
        """After `restore`: go on with the lanes that `open_lanes` gave."""
        with self._changed:
            self._contents.reopen(arrays)

    def insert(
        self,
        lane: Hashable,
        fields: Mapping[str, NDArray[np.generic]],
        state: Sequence[NDArray[np.generic]] | None,
        priority: float | None = None,
    ) -> int | None:
        """Encode and add a lane's next chunk; never waits (`can_insert` says whether it should).

        Parameters
        ----------
        lane
            Whose chunk it is: an environment, say. The chunks of one come in order, from one thread.
        fields
            Name to array ``[rows, ...]``; copied.
        state
            Core state fed at the chunk's first index; may be None where no sequence begins.
        priority
            Of the sequence that the chunk completes, before the exponent; by default the largest so far.

        Returns
        -------
        int or None
            Generation of the sequence that this chunk completes, if it does.

        Raises
        ------
        SpecError
            When an array is missing or not as the spec says.
        ReplayFull
            When the memory limit does not hold as many sequences as must be there to sample from.
        """
        if priority is not None:
            check_priorities((priority,))
        lanes = self._contents.lanes
        with self._changed:
            self._check_open()
            number, position = lanes.next(lane)
        data = self._encoder.encode(fields, state, position)
        with self._changed:
            self._check_open()
            if not lanes.continues(lane, number, position):
                return None  # the lane ended meanwhile
            generation = self._contents.append(lane, data, priority)
            if generation is not None:
                self._changed.notify_all()
        return generation

    def completes(self, lane: Hashable) -> bool:
        """Whether a lane's next chunk completes a sequence."""
        with self._changed:
            return self._contents.lanes.completes(lane)

    def end_lane(self, lane: Hashable) -> None:
        """End a lane: no sequence reaches beyond it. What no sequence refers to is freed."""
        with self._changed:
            self._contents.end_lane(lane)

    def sample(self, out: SequenceBatch, timeout: float | None = 0) -> Sample | NotYet:
        """Draw sequences by priority and decode them.

        Parameters
        ----------
        out
            Memory to decode into.
        timeout
            Seconds to wait for enough sequences; None: until there are, or the replay is closed.

        Raises
        ------
        DamagedChunk
            When a chunk in memory is not what was inserted.
        """
        if out.spec is not self.spec and out.spec != self.spec:
            raise SpecError(f"the batch is of another kind: {self.spec.describe_difference(out.spec)}")
        contents = self._contents
        with self._changed:
            if timeout != 0:
                self._changed.wait_for(lambda: self._closed or contents.can_sample(out.size), timeout)
            if self._closed or not contents.can_sample(out.size):
                return NotYet(contents.limiter.status(contents.table.size), self._closed)
            draw = contents.draw(out.size)
            self._changed.notify_all()
        weights = importance_weights(draw.probabilities, draw.size, self._importance)
        self._decoder.decode(draw.chains, out)
        return Sample(out, draw.generations, draw.slots, draw.probabilities, weights)

    def update_priorities(self, generations: NDArray[np.int64], priorities: NDArray[np.float64]) -> int:
        """Give sequences new priorities (before the exponent).

        Returns
        -------
        int
            How many of them are gone: these updates are ignored.

        Raises
        ------
        SeedflowError
            For a priority that is negative or not finite; nothing is changed then.
        """
        generations = np.ascontiguousarray(generations, np.int64)
        priorities = np.ascontiguousarray(priorities, np.float64)
        with self._changed:
            return self._contents.update(generations, priorities)

    @property
    def can_insert(self) -> bool:
        """Whether the limiter lets another sequence in."""
        with self._changed:
            return self._contents.can_insert()

    def wait_insert(self, timeout: float) -> bool:
        """Wait until `can_insert` or `close`, at most `timeout` seconds; returns `can_insert`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._contents.can_insert(), timeout)
            return self._contents.can_insert()

    def can_sample(self, batch: int) -> bool:
        """Whether `batch` sequences may be sampled now."""
        with self._changed:
            return self._contents.can_sample(batch)

    def status(self) -> LimiterStatus:
        """Where the limiter stands, in numbers and words."""
        with self._changed:
            return self._contents.limiter.status(self._contents.table.size)

    def __len__(self) -> int:
        """Sequences held."""
        return self._contents.table.size

    def metrics(self) -> dict[str, float]:
        """What to record, by metric name."""
        contents = self._contents
        with self._changed:
            counters: dict[str, float] = dict(contents.counters)
            values = {
                "replay/sequences": contents.table.size,
                "replay/chunks": contents.chunks,
                "replay/bytes": contents.nbytes,
                "replay/balance": contents.limiter.balance,
                "replay/snapshot_lock_ms": self._lock_ms,
            }
        encoded, raw = counters.pop("encoded_bytes"), counters.pop("raw_bytes")
        if encoded:
            values["replay/compression"] = raw / encoded
        return values | {f"replay/{name}": value for name, value in counters.items()}

    def snapshot(self) -> Snapshot:
        """Everything, at this moment. Others never wait for more than a portion of it to be copied."""
        contents, longest = self._contents, _Longest()
        with self._changed, longest:
            copy = contents.begin_copy()
        try:
            for begin in range(0, len(copy.ids), PORTION):
                with self._changed, longest:
                    contents.go_on_copying(copy, begin)
        finally:
            with self._changed, longest:
                contents.end_copy(copy)
        self._lock_ms = 1000 * longest.seconds
        return copy.snapshot()

    def close(self) -> None:
        """Wake whoever waits and end the decoding threads; nothing is inserted or sampled afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._decoder.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SeedflowError("the replay is closed: insert into it before `close`")


class _Longest:
    """Times blocks; keeps the longest."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *exc: object) -> None:
        self.seconds = max(self.seconds, time.perf_counter() - self._begin)

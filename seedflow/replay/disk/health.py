"""What is in a checkpointed replay, and whether it is whole."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seedflow.checkpoints import Generations, Manifest, Store
from seedflow.checkpoints.store import checked_path
from seedflow.errors import CheckpointDamaged, CheckpointError, DamagedChunk
from seedflow.replay.chunks import Chunk
from seedflow.replay.codec import decode_into
from seedflow.replay.disk.load import check_sequences
from seedflow.replay.disk.part import REPLAY, ReplayPart
from seedflow.replay.disk.places import Places
from seedflow.replay.disk.segments import Segment, StoredChunks
from seedflow.replay.layout import ReplaySpec

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
BINS = 10


@dataclass(frozen=True)
class SegmentHealth:
    """One segment.

    Attributes
    ----------
    used
        Chunks that a sequence refers to, of `chunks`.
    nbytes
        On disk; None where it cannot be read.
    problems
        Empty where it is whole, as far as was looked.
    """

    path: str
    chunks: int
    used: int
    nbytes: int | None
    created: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayReport:
    """The replay of one generation.

    Attributes
    ----------
    created
        When the generation was saved, Unix seconds; `oldest`: when the oldest chunk of use was.
    skipped
        Why newer generations cannot be read.
    steps
        Indices of all chunks of use, each counted once.
    raw_bytes, stored_bytes
        Of these chunks, before and after encoding.
    disk_bytes, files
        What the replay's part of the generation takes.
    percentiles, histogram
        Of the priorities: values at `PERCENTILES`; counts in `BINS` equal bins from the least to the largest.
    """

    where: str
    generation: int
    created: float
    oldest: float
    skipped: tuple[str, ...]
    spec: ReplaySpec
    sequences: int
    first_sequence: int | None
    last_sequence: int | None
    chunks: int
    steps: int
    raw_bytes: int
    stored_bytes: int
    disk_bytes: int
    files: int
    percentiles: dict[str, float]
    histogram: tuple[int, ...]
    counters: dict[str, Any]
    segments: tuple[SegmentHealth, ...]
    problems: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """How many times smaller encoding makes it."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else None

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        rest = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        segments = [dataclasses.asdict(segment) for segment in self.segments]
        return rest | {"spec": self.spec.to_json(), "ratio": self.ratio, "segments": segments}


@dataclass(frozen=True)
class GenerationHealth:
    """One generation after everything that belongs to it was read."""

    generation: int
    created: float | None
    segments: tuple[SegmentHealth, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.problems and not any(segment.problems for segment in self.segments)

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return dataclasses.asdict(self) | {"whole": self.whole}


def describe_replay(store: Store, generation: int | None = None) -> ReplayReport:
    """Look at the replay of a generation, by default the newest, without reading its chunks.

    Raises
    ------
    CheckpointError
        When there is none, or what is left of it does not say what it was.
    """

    def read(manifest: Manifest) -> ReplayReport:
        return _describe(store, manifest)

    found = Generations(store).restore(read, generation)
    return dataclasses.replace(found.value, skipped=found.skipped)


def _describe(store: Store, manifest: Manifest) -> ReplayReport:
    part = ReplayPart.of(store, manifest)
    sequences = part.read_sequences(store)
    check_sequences(sequences, f"{store}/{part.table}")
    problems: list[str] = []
    opened: dict[str, StoredChunks] = {}
    broken: dict[str, str] = {}
    for segment in part.segments:
        try:
            opened[segment.path] = StoredChunks(store, part.spec, segment, part.files)
        except CheckpointDamaged as error:
            broken[segment.path] = str(error)
    stored = list(opened.values())
    places = Places(stored, part.spec)
    begins, complete = places.find(sequences)
    if not complete.all():
        problems.append(f"{int((~complete).sum())} of {len(sequences)} sequences lack a chunk")
    covered = places.covered(begins[complete])
    used = np.bincount(places.segments[covered], minlength=len(stored))
    counts = dict(zip(opened, used.tolist(), strict=True))
    segments = tuple(
        SegmentHealth(
            segment.path,
            segment.chunks,
            counts.get(segment.path, 0),
            opened[segment.path].files.nbytes if segment.path in opened else None,
            segment.created,
            (broken[segment.path],) if segment.path in broken else (),
        )
        for segment in part.segments
    )
    with_state = int(places.has_state[covered].sum())
    state_bytes = sum(array.nbytes for array in part.spec.state)
    raw = int(covered.sum()) * (part.spec.raw_bytes() - state_bytes) + with_state * state_bytes
    priorities = sequences.priority
    percentiles, histogram = {}, [0] * BINS
    if len(priorities):
        values = np.percentile(priorities, PERCENTILES).tolist()
        percentiles = {str(p): value for p, value in zip(PERCENTILES, values, strict=True)}
        histogram = np.histogram(priorities, BINS)[0].tolist()
    counters = part.state.get("counters")
    return ReplayReport(
        where=str(store),
        generation=manifest.generation,
        created=manifest.created,
        oldest=min((segment.created for segment in segments if segment.used), default=manifest.created),
        skipped=(),
        spec=part.spec,
        sequences=len(sequences),
        first_sequence=int(sequences.generation[0]) if len(sequences) else None,
        last_sequence=int(sequences.generation[-1]) if len(sequences) else None,
        chunks=int(covered.sum()),
        steps=int(covered.sum()) * part.spec.chunk,
        raw_bytes=raw,
        stored_bytes=int(places.encoded[covered].sum()),
        disk_bytes=sum(file.size for file in part.files.values()),
        files=len(part.files),
        percentiles=percentiles,
        histogram=tuple(histogram),
        counters=counters if isinstance(counters, dict) else {},
        segments=segments,
        problems=tuple(problems),
    )


@dataclass
class _Verified:
    """What was read already: generations share files."""

    files: dict[tuple[str, int, int], str | None] = field(default_factory=dict)
    segments: dict[str, tuple[str, ...]] = field(default_factory=dict)


def verify_checkpoints(store: Store) -> list[GenerationHealth]:
    """Read and decode everything in every generation, newest first.

    Raises
    ------
    CheckpointError
        When there is no generation.
    """
    numbers = Generations(store).numbers()
    if not numbers:
        raise CheckpointError(f"{store} holds no checkpoint; has this run saved one yet?")
    verified = _Verified()
    return [_verify(store, number, verified) for number in reversed(numbers)]


def _verify(store: Store, number: int, verified: _Verified) -> GenerationHealth:
    try:
        manifest = Manifest.read(store, number)
    except CheckpointError as error:
        return GenerationHealth(number, None, problems=(str(error),))
    problems = []
    for file in manifest.files:
        key = (checked_path(file.path), file.size, file.crc32c)
        if key not in verified.files:
            verified.files[key] = None
            try:
                file.verify(store)
            except CheckpointDamaged as error:
                verified.files[key] = str(error)
        problem = verified.files[key]
        if problem is not None:
            problems.append(problem)
    if REPLAY not in manifest.parts:
        return GenerationHealth(number, manifest.created, problems=tuple(problems))
    try:
        report = _describe(store, manifest)
        part = ReplayPart.of(store, manifest)
    except CheckpointError as error:
        return GenerationHealth(number, manifest.created, problems=(*problems, str(error)))
    segments = []
    for segment, health in zip(part.segments, report.segments, strict=True):
        if segment.path not in verified.segments:
            found = health.problems or tuple(_verify_segment(store, part, segment))
            verified.segments[segment.path] = found
        segments.append(dataclasses.replace(health, problems=verified.segments[segment.path]))
    return GenerationHealth(
        number, manifest.created, tuple(segments), tuple(dict.fromkeys([*problems, *report.problems]))
    )


def _verify_segment(store: Store, part: ReplayPart, segment: Segment) -> list[str]:
    """Decode all chunks of a segment that could be opened; what is wrong with them."""
    try:
        stored = StoredChunks(store, part.spec, segment, part.files)
        chunks, damaged, problems = stored.read(np.ones(segment.chunks, np.bool_))
        problems += [f"chunk {number}: {problem}" for number, problem in damaged.items()]
        problems += stored.check_documents()
    except CheckpointDamaged as error:
        return [str(error)]
    buffers = [np.empty(part.spec.shape(array), array.dtype) for array in part.spec.arrays]
    for chunk in chunks:
        try:
            _decode(part.spec, chunk, buffers)
        except DamagedChunk as error:
            problems.append(f"chunk {chunk.id}: {error}")
    return problems


def _decode(spec: ReplaySpec, chunk: Chunk, buffers: list[np.ndarray[Any, Any]]) -> None:
    for array, data, buffer in zip(spec.arrays, chunk.data, buffers, strict=False):
        decode_into(data, buffer, spec.compressed(array))

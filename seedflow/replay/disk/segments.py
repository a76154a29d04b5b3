"""Segments: immutable Zarr groups of chunks.

::

    segments/<first id>-<last id>-<uuid>.zarr.zip
      zarr.json                      attributes: format, version, the replay's spec
      id, lane, position             int64 [n]
      fields/<name>                  [n, rows, ...], inner chunks [1, rows, ...]
      state/<name>                   [n, ...], inner chunks [1, ...]; absent where no sequence begins

An inner chunk is byte for byte what the replay holds in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from seedflow.checkpoints import Draft, Store, StoredFile
from seedflow.errors import CheckpointDamaged, CheckpointError, DamagedChunk
from seedflow.replay.chunks import Chunk
from seedflow.replay.codec import CHECKSUM_BYTES, RESIDUE, checked, content_size
from seedflow.replay.disk.group import SUFFIXES, Content, Form, GroupFiles, write_group
from seedflow.replay.disk.zarr import (
    ZarrArray,
    document_paths,
    group_documents,
    index_bytes,
    node_path,
    read_shard_index,
    shard_pieces,
)
from seedflow.replay.layout import ReplaySpec

DIRECTORY = "segments"
FORMAT, VERSION = "seedflow-replay-segment", 1
MAX_CHUNKS = 5000
MAX_BYTES = 64 * 2**20
"""Of encoded chunks in a segment, unless a single one is larger."""
MAX_CHUNK_BYTES = 2**28
"""Of a chunk before compression."""
MAX_ARRAYS = 1000

PLACES = ("id", "lane", "position")

_INT64 = np.dtype("<i8")
_NAME = re.compile(DIRECTORY + r"/(\d{12,19})-(\d{12,19})-[0-9a-f]{32}\.zarr(\.zip)?")


@dataclass(frozen=True)
class Segment:
    """What a manifest says about a segment.

    Attributes
    ----------
    path
        In the store.
    chunks
        How many it holds; some may be of no use any more.
    created
        Unix seconds when the oldest of its chunks was first saved.
    """

    path: str
    chunks: int
    created: float

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last id in it."""
        match = _NAME.fullmatch(self.path)
        assert match is not None
        return int(match[1]), int(match[2])

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "chunks": self.chunks, "created": self.created}

    @classmethod
    def from_json(cls, untrusted: Any) -> Segment:
        """Read what `to_json` wrote.

        Raises
        ------
        ValueError, KeyError, TypeError
            When it is anything else.
        """
        path, chunks, created = untrusted["path"], untrusted["chunks"], float(untrusted["created"])
        if not isinstance(path, str) or _NAME.fullmatch(path) is None:
            raise ValueError(f"{path!r:.100} is no path of a segment")
        if type(chunks) is not int or not 1 <= chunks <= MAX_CHUNKS:
            raise ValueError(f"segment {path} has {chunks!r:.100} chunks")
        return cls(path, chunks, created)


def segment_arrays(spec: ReplaySpec, count: int) -> list[ZarrArray]:
    """The arrays of a segment of `count` chunks: places, then those of the spec in its order."""
    arrays = [ZarrArray(name, (count,), _INT64, ("chunk",)) for name in PLACES]
    for kind, group, axes in (("fields", spec.fields, ("chunk", "index")), ("state", spec.state, ("chunk",))):
        arrays += [
            ZarrArray(
                node_path(kind, array.name),
                (count, *spec.shape(array)),
                array.dtype,
                axes,
                compress=spec.compressed(array),
                sharded=True,
            )
            for array in group
        ]
    return arrays


def write_segment(
    draft: Draft, spec: ReplaySpec, chunks: Sequence[Chunk], form: Form, created: float
) -> tuple[Segment, tuple[StoredFile, ...]]:
    """Write chunks, which are in order of id, as one segment."""
    arrays = segment_arrays(spec, len(chunks))
    contents: list[tuple[ZarrArray, Content | None]] = []
    for name, array in zip(PLACES, arrays, strict=False):
        data = plain_bytes(np.array([getattr(chunk, name) for chunk in chunks], _INT64))
        contents.append((array, Content(len(data), partial(list, [data]))))
    for number, array in enumerate(arrays[len(PLACES) :]):
        contents.append((array, _shard(chunks, number)))
    stem = f"{chunks[0].id:012d}-{chunks[-1].id:012d}"
    path = draft.unique_path(DIRECTORY, stem, SUFFIXES[form])
    files = write_group(draft, path, _attributes(spec), contents)
    return Segment(path, len(chunks), created), files


def _attributes(spec: ReplaySpec) -> dict[str, Any]:
    return {"seedflow": {"format": FORMAT, "version": VERSION, "spec": spec.to_json()}}


def cut(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Cut chunks into what one segment holds."""
    gathered: list[Chunk] = []
    size = 0
    for chunk in chunks:
        length = sum(map(len, chunk.data))
        if gathered and (len(gathered) == MAX_CHUNKS or size + length > MAX_BYTES):
            yield gathered
            gathered, size = [], 0
        gathered.append(chunk)
        size += length
    if gathered:
        yield gathered


class StoredChunks:
    """A segment that can be read: where its chunks belong, and how large they are.

    Nothing of the chunks themselves is read before `read`.

    Attributes
    ----------
    ids, lanes, positions
        int64 [n].
    sizes
        int64 [arrays of the spec, n]: encoded bytes; -1 where absent.

    Raises
    ------
    CheckpointDamaged
        When the segment is not what the manifest and the spec say.
    """

    def __init__(
        self, store: Store, spec: ReplaySpec, segment: Segment, files: Mapping[str, StoredFile]
    ) -> None:
        self.segment, self.spec = segment, spec
        arrays = segment_arrays(spec, segment.chunks)
        self._places, self._arrays = arrays[: len(PLACES)], arrays[len(PLACES) :]
        largest = sum(array.most_bytes for array in self._arrays)
        own = sum(file.size for path, file in files.items() if f"{path}/".startswith(f"{segment.path}/"))
        if own > MAX_BYTES + largest + 200 * segment.chunks * len(arrays) + 2**20:
            raise CheckpointDamaged(f"{store}/{segment.path} has {own} bytes, more than a segment can have")
        self.files = GroupFiles(store, segment.path, files, arrays)
        try:
            self.ids, self.lanes, self.positions = (self._plain(array) for array in self._places)
            self._check_places()
            self.sizes = np.stack([self._sizes(array) for array in self._arrays])
            self._check_presence()
        except (CheckpointDamaged, DamagedChunk) as error:
            raise CheckpointDamaged(f"{self.files}: {error}") from error

    @property
    def nbytes(self) -> NDArray[np.int64]:
        """Encoded bytes of each chunk, int64 [n]."""
        total: NDArray[np.int64] = np.maximum(self.sizes, 0).sum(axis=0)
        return total

    def read(self, wanted: NDArray[np.bool_]) -> tuple[list[Chunk], dict[int, str], list[str]]:
        """Read and verify some of the chunks.

        Returns
        -------
        chunks
            Those that are whole.
        damaged
            What is wrong with each of the others, by id.
        problems
            Checksums of files that are wrong.
        """
        views, problems = self.files.read_whole()
        rows = np.flatnonzero(wanted)
        begins = np.zeros_like(self.sizes)
        np.cumsum(np.maximum(self.sizes, 0)[:, :-1], axis=1, out=begins[:, 1:])
        bad: dict[int, str] = {}  # by row
        columns = []
        for array, sizes, offsets in zip(self._arrays, self.sizes, begins, strict=True):
            stored = rows[sizes[rows] >= 0]
            spans = zip(offsets[stored].tolist(), (offsets + sizes)[stored].tolist(), strict=True)
            view = views[array.data_path]
            pieces = [bytes(view[begin:end]) for begin, end in spans]
            bad |= _damaged(array, stored, pieces)
            columns.append(pieces)
        fields, state = columns[: len(self.spec.fields)], columns[len(self.spec.fields) :]
        with_state = iter(zip(*state, strict=True))
        chunks, damaged = [], {}
        has_state = (self.sizes[-1, rows] >= 0).tolist() if state else [False] * len(rows)
        ids, lanes, positions = (column[rows].tolist() for column in (self.ids, self.lanes, self.positions))
        for number, data in enumerate(zip(*fields, strict=True)):
            if has_state[number]:
                data += next(with_state)
            if rows[number] in bad:
                damaged[ids[number]] = bad[rows[number]]
            else:
                chunks.append(Chunk(ids[number], lanes[number], positions[number], data))
        return chunks, damaged, problems

    def check_documents(self) -> list[str]:
        """Whether other readers of Zarr see what this one does; what is wrong."""
        expected = group_documents([*self._places, *self._arrays], _attributes(self.spec))
        found = []
        for path, document in expected.items():
            data = self.files.read(path, 0, self.files.size(path))
            if data != document:
                found.append(f"{self.files}: {path} does not describe the array that is stored")
        return found

    def _plain(self, array: ZarrArray) -> NDArray[np.int64]:
        return read_plain(self.files, array).astype(np.int64)

    def _sizes(self, array: ZarrArray) -> NDArray[np.int64]:
        total, length = self.files.size(array.data_path), index_bytes(array.shape[0])
        data = self.files.read(array.data_path, total - length, length)
        return read_shard_index(data, array, total)

    def _check_places(self) -> None:
        first, last = self.segment.range
        if (np.diff(self.ids) <= 0).any() or (self.ids[0], self.ids[-1]) != (first, last):
            raise CheckpointDamaged(f"its chunks are not {first} to {last}, in order")
        if (self.lanes < 0).any() or (self.positions < 0).any() or (self.positions >= 2**31).any():
            raise CheckpointDamaged("a chunk has a negative or enormous lane or position")

    def _check_presence(self) -> None:
        fields = len(self.spec.fields)
        begins = self.positions * self.spec.chunk % self.spec.period == 0
        if (self.sizes[:fields] < 0).any() or ((self.sizes[fields:] >= 0) != begins).any():
            raise CheckpointDamaged("a chunk has arrays too many or too few")


def read_plain(files: GroupFiles, array: ZarrArray) -> NDArray[Any]:
    """Read an array that is one chunk.

    Raises
    ------
    CheckpointDamaged
        When it has another size.
    DamagedChunk
        When its checksum is wrong.
    """
    if 0 in array.shape:
        return np.zeros(array.shape, array.dtype)
    size = files.size(array.data_path)
    if size != array.raw_bytes + CHECKSUM_BYTES:
        raise CheckpointDamaged(
            f"{array.path} has {size} bytes instead of {array.raw_bytes + CHECKSUM_BYTES}"
        )
    data = files.read(array.data_path, 0, size)
    checked(data)
    return np.frombuffer(data[:-CHECKSUM_BYTES], array.dtype).reshape(array.shape)


def plain_bytes(array: NDArray[Any]) -> bytes:
    """The one chunk of an array, uncompressed."""
    data = array.tobytes()
    checksum: int = google_crc32c.value(data)
    return data + checksum.to_bytes(CHECKSUM_BYTES, "little")


def _shard(chunks: Sequence[Chunk], number: int) -> Content:
    """One array of some chunks."""
    lengths = [len(chunk.data[number]) if number < len(chunk.data) else None for chunk in chunks]

    def pieces() -> Iterator[bytes]:
        encoded = (chunk.data[number] if number < len(chunk.data) else None for chunk in chunks)
        return shard_pieces(encoded, lengths)

    return Content(sum(length or 0 for length in lengths) + index_bytes(len(chunks)), pieces)


def _damaged(array: ZarrArray, rows: NDArray[np.int64], pieces: Sequence[bytes]) -> dict[int, str]:
    """Which of some encoded chunks have a wrong checksum or size, and what is wrong; nothing is decoded."""
    found, raw_bytes = {}, array.raw_bytes
    for row, data, crc in zip(rows.tolist(), pieces, map(google_crc32c.value, pieces), strict=True):
        if crc != RESIDUE or len(data) < CHECKSUM_BYTES:
            found[row] = f"{array.path} has a wrong checksum"
        else:
            size = content_size(data) if array.compress else len(data) - CHECKSUM_BYTES
            if size != raw_bytes:
                found[row] = f"{array.path} has {size} bytes instead of {raw_bytes}"
    return found


def check_spec(spec: ReplaySpec) -> ReplaySpec:
    """Refuse a spec that no segment can hold.

    Raises
    ------
    CheckpointError
        Says which limit of the format it exceeds.
    """
    if len(spec.arrays) > MAX_ARRAYS:
        raise CheckpointError(
            f"this replay has {len(spec.arrays)} arrays, more than the {MAX_ARRAYS} allowed"
        )
    arrays = segment_arrays(spec, 1)
    document_paths(arrays)
    largest = sum(array.raw_bytes for array in arrays)
    if largest > MAX_CHUNK_BYTES:
        raise CheckpointError(
            f"a chunk of this replay has {largest} bytes before compression, more than the "
            f"{MAX_CHUNK_BYTES} that a checkpoint can hold; make replay.chunk smaller"
        )
    return spec

"""What a Zarr v3 group of ours consists of.

A group holds two kinds of arrays. A *sharded* array has one inner chunk for each index of its first axis,
all in a single shard, so that its file is a concatenation of encoded chunks and an index. A *plain* array is
one chunk. Either way an array has one file of data.

Spec: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html and its codecs ``bytes``, ``zstd``,
``crc32c`` and ``sharding_indexed``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from seedflow.errors import CheckpointDamaged, CheckpointError
from seedflow.replay.codec import CHECKSUM_BYTES, LEVEL

DOCUMENT = "zarr.json"
ABSENT = 2**64 - 1
"""Offset and size of an inner chunk that is not stored; readers see zeros."""

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
_ZSTD = {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}}


@dataclass(frozen=True)
class ZarrArray:
    """An array of a group.

    Attributes
    ----------
    path
        Within the group, such as ``fields/observation``.
    shape, dtype
        Of the whole array.
    axes
        Names of the first axes.
    compress
        Whether its chunks are compressed.
    sharded
        See the module's docstring.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    axes: tuple[str, ...]
    compress: bool = False
    sharded: bool = False

    def __post_init__(self) -> None:
        if 0 in self.shape[1:]:
            raise CheckpointError(
                f"array {self.path} has shape {self.shape}: Zarr has no chunks without elements; "
                "leave it out of what is stored"
            )

    @property
    def data_path(self) -> str:
        """Of its one file."""
        return "/".join([self.path, "c", *["0"] * len(self.shape)])

    @property
    def raw_bytes(self) -> int:
        """Of one chunk (of one inner chunk, where sharded) before encoding."""
        shape = self.shape[1:] if self.sharded else self.shape
        return math.prod(shape) * self.dtype.itemsize

    @property
    def most_bytes(self) -> int:
        """Of one encoded chunk at most."""
        if not self.compress:
            return self.raw_bytes + CHECKSUM_BYTES
        return self.raw_bytes + self.raw_bytes // 128 + 512 + CHECKSUM_BYTES  # more than zstd's own bound

    def document(self) -> dict[str, Any]:
        """Its ``zarr.json``."""
        codecs = [_BYTES, *([_ZSTD] if self.compress else []), _CRC32C]
        whole = [max(1, n) for n in self.shape]
        if self.sharded:
            configuration = {
                "chunk_shape": [1, *self.shape[1:]],
                "codecs": codecs,
                "index_codecs": [_BYTES, _CRC32C],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": configuration}]
        fill: bool | float = 0
        if self.dtype == np.bool_:
            fill = False
        elif self.dtype.kind == "f":
            fill = 0.0
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype.name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": whole}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": codecs,
            "attributes": {},
            "dimension_names": [*self.axes, *[None] * (len(self.shape) - len(self.axes))],
            "storage_transformers": [],
        }


def group_documents(arrays: Sequence[ZarrArray], attributes: Mapping[str, Any]) -> dict[str, bytes]:
    """The metadata files of a group by path: its own, those of groups within, those of the arrays.

    Raises
    ------
    CheckpointError
        When an array's path leads through another array.
    """
    nodes = {group: _group({}) for group in _inner_groups(arrays)}
    nodes |= {array.path: array.document() for array in arrays}
    consolidated = {"kind": "inline", "must_understand": False, "metadata": dict(sorted(nodes.items()))}
    root = _group(attributes) | {"consolidated_metadata": consolidated}
    documents = {DOCUMENT: root} | {f"{path}/{DOCUMENT}": node for path, node in nodes.items()}
    dump = partial(json.dumps, separators=(",", ":"))
    return {path: dump(document).encode() for path, document in documents.items()}


def document_paths(arrays: Sequence[ZarrArray]) -> set[str]:
    """Where the metadata files of a group are."""
    nodes = _inner_groups(arrays) | {array.path for array in arrays}
    return {DOCUMENT} | {f"{path}/{DOCUMENT}" for path in nodes}


def _inner_groups(arrays: Sequence[ZarrArray]) -> set[str]:
    names = [array.path.split("/") for array in arrays]
    groups = {"/".join(parts[:depth]) for parts in names for depth in range(1, len(parts))}
    both = groups & {array.path for array in arrays}
    if both:
        raise CheckpointError(f"array {min(both)} would hold other arrays; rename it")
    return groups


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def node_path(kind: str, name: str) -> str:
    """Where the array of some name is: harmless as a path, and the name itself where that is harmless.

    Examples
    --------
    >>> node_path("fields", "observation/left eye")
    'fields/observation/left%20eye'
    >>> node_path("fields", "observation/../__x")
    'fields/observation/%2E./%5F_x'
    """
    return "/".join([kind, *map(_node_name, name.split("/"))])


def _node_name(name: str) -> str:
    quoted = re.sub("^-", "%2D", quote(name, safe=""))
    quoted = re.sub(r"^\.", "%2E", quoted)
    quoted = re.sub("^__", "%5F_", quoted)  # reserved by Zarr
    if quoted in (DOCUMENT, "c"):
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}"
    return quoted or "%"


def shard_index(lengths: Sequence[int | None]) -> bytes:
    """The index at the end of a shard whose inner chunks have some lengths; None: not stored."""
    entries, offset = [], 0
    for length in lengths:
        entries.append((ABSENT, ABSENT) if length is None else (offset, length))
        offset += length or 0
    data = np.array(entries, "<u8").tobytes()
    checksum: int = google_crc32c.value(data)
    return data + checksum.to_bytes(CHECKSUM_BYTES, "little")


def index_bytes(count: int) -> int:
    """Size of the index of a shard."""
    return 16 * count + CHECKSUM_BYTES


def read_shard_index(data: bytes, array: ZarrArray, size: int) -> NDArray[np.int64]:
    """Sizes of the inner chunks of a shard of `size` bytes; -1 where one is not stored.

    Raises
    ------
    CheckpointDamaged
        When the index is damaged, or is not what `shard_index` writes: chunks in order, without gaps.
    """
    count = array.shape[0]
    body = data[:-CHECKSUM_BYTES]
    if google_crc32c.value(body) != int.from_bytes(data[-CHECKSUM_BYTES:], "little"):
        raise CheckpointDamaged(f"the index of {array.path} has a wrong checksum")
    offsets, sizes = np.frombuffer(body, "<u8").reshape(count, 2).T
    stored = offsets != ABSENT
    lengths = sizes[stored]
    if (sizes[~stored] != ABSENT).any() or (lengths > array.most_bytes).any():
        raise CheckpointDamaged(f"the index of {array.path} has chunks larger than {array.most_bytes} bytes")
    ends = np.cumsum(lengths, dtype=np.uint64)
    begins = np.concatenate([np.zeros(1, np.uint64), ends[:-1]]) if len(ends) else ends
    total = int(ends[-1]) if len(ends) else 0
    if (offsets[stored] != begins).any() or total + len(data) != size:
        raise CheckpointDamaged(f"the index of {array.path} does not fit the {size} bytes of its file")
    found = np.full(count, -1, np.int64)
    found[stored] = lengths
    return found


def shard_pieces(chunks: Iterable[bytes | None], lengths: Sequence[int | None]) -> Iterator[bytes]:
    """A shard as a stream: encoded inner chunks, then the index."""
    for chunk in chunks:
        if chunk is not None:
            yield chunk
    yield shard_index(lengths)

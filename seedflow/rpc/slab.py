"""The slab: the shared rows through which every actor and the learner exchange one step.

The slab is an array of equal, page-aligned *blocks*, one for each lease. A block holds the rows of G
groups of E environments as a structure of arrays, after two counters for each group::

    request counters   G cache lines, written by the actor
    reply counters     G cache lines, written by the learner
    observation...     [G*E, ...]   request half, written by the actor
    reward, terminated, truncated, first, frames, masked
    action             [G*E]        reply half, written by the learner

Row i of group g is ``g * E + i``. The fields of all blocks together are strided arrays
``[blocks, G*E, ...]``, so that the learner reads and writes any lease by indexing.

The memory is an anonymous file (``memfd_create``), passed over a unix socket as a file descriptor. Compared
with a file in ``/dev/shm`` there is no name to leave behind after a kill and no mount-size limit (containers
often have 64 MiB there); an actor maps the pages of its own block only. The file is allocated in full and
sealed against resizing, so touching a mapped row can never raise SIGBUS. Byte order is the machine's own.

Examples
--------
>>> from seedflow.specs import ArraySpec, EnvSpec
>>> spec = EnvSpec((ArraySpec("observation", (4,), np.dtype("float32")),), num_actions=2)
>>> layout = BlockLayout(spec, groups=2, envs=8)
>>> with Slab(layout, blocks=3) as slab:
...     block = Block.map(slab.fd, layout, index=1)
...     block.rows(1)["reward"][:] = 0.5
...     float(slab.fields["reward"][1, 8:].sum())
4.0
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seedflow.errors import SpecError, TransportError
from seedflow.specs import ArraySpec, EnvSpec

Array = npt.NDArray[Any]

CACHE_LINE = 64
MAX_GROUPS = 255  # a doorbell message names its group in one byte

REQUEST_SCALARS = (
    ArraySpec("reward", (), np.dtype(np.float32)),
    ArraySpec("terminated", (), np.dtype(np.bool_)),
    ArraySpec("truncated", (), np.dtype(np.bool_)),
    ArraySpec("first", (), np.dtype(np.bool_)),
    ArraySpec("frames", (), np.dtype(np.int32)),
    ArraySpec("masked", (), np.dtype(np.int32)),
)
COUNTED_SCALARS = ("frames", "masked")
"""Those of them that are counted and not kept in unrolls."""
REPLY_SCALARS = (ArraySpec("action", (), np.dtype(np.int64)),)


class Field(NamedTuple):
    """Where one array lies within a block: offset in bytes, shape ``(G*E, ...)`` and dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class BlockLayout:
    """Offsets of every array within a block; equal for all leases of a run.

    Parameters
    ----------
    spec
        What one environment shows and takes.
    groups
        G, the groups of a lease: 1 to 255.
    envs
        E, the environments of a group.

    Raises
    ------
    SpecError
        If `groups` or `envs` is out of range.
    """

    spec: EnvSpec
    groups: int
    envs: int

    def __post_init__(self) -> None:
        if not 1 <= self.groups <= MAX_GROUPS:
            raise SpecError(f"groups = {self.groups}: expected 1 to {MAX_GROUPS}; change actor.groups")
        if self.envs < 1:
            raise SpecError(f"envs = {self.envs}: expected at least 1; change actor.envs_per_group")

    @property
    def rows(self) -> int:
        """Rows of a block, G*E."""
        return self.groups * self.envs

    @cached_property
    def request_fields(self) -> Mapping[str, Field]:
        """The arrays that an actor writes: observation leaves, reward, flags, frames."""
        return self._place(self.spec.observation + REQUEST_SCALARS, 2 * self.groups * CACHE_LINE)

    @cached_property
    def reply_fields(self) -> Mapping[str, Field]:
        """The arrays that the learner writes: the action, counted from 0."""
        return self._place(REPLY_SCALARS, self._end(self.request_fields))

    @cached_property
    def block_bytes(self) -> int:
        """Bytes of a block, a whole number of pages."""
        return _round_up(self._end(self.reply_fields), mmap.ALLOCATIONGRANULARITY)

    @cached_property
    def request_bytes(self) -> int:
        """Bytes of one group's packed request."""
        return self._group_bytes(self.request_fields)

    @cached_property
    def reply_bytes(self) -> int:
        """Bytes of one group's packed reply."""
        return self._group_bytes(self.reply_fields)

    def _place(self, arrays: tuple[ArraySpec, ...], offset: int) -> dict[str, Field]:
        fields: dict[str, Field] = {}
        for array in arrays:
            fields[array.name] = Field(offset, (self.rows, *array.shape), array.dtype)
            offset = _round_up(offset + self.rows * array.nbytes, CACHE_LINE)
        return fields

    def _end(self, fields: Mapping[str, Field]) -> int:
        last = list(fields.values())[-1]
        return _round_up(last.offset + _nbytes(last), CACHE_LINE)

    def _group_bytes(self, fields: Mapping[str, Field]) -> int:
        return sum(_nbytes(field) for field in fields.values()) // self.groups


class Slab:
    """All blocks of a run, owned by the learner.

    Parameters
    ----------
    layout
        The layout of each block.
    blocks
        How many leases fit.

    Attributes
    ----------
    fields : dict of str to ndarray
        Every array of `layout`, shape ``[blocks, G*E, ...]``, zero at start.
    requests, replies : ndarray
        uint64 counters, shape ``[blocks, G]``.
    memory : ndarray
        The whole mapping as uint8, for registering it as pinned memory.
    fd : int
        The anonymous file, to be passed to actors.

    Raises
    ------
    TransportError
        If the machine does not have the memory.
    """

    def __init__(self, layout: BlockLayout, blocks: int) -> None:
        if blocks < 1:
            raise SpecError(f"blocks = {blocks}: expected at least 1")
        self.layout, self.blocks = layout, blocks
        nbytes = blocks * layout.block_bytes
        self.fd = _allocate(nbytes, f"{blocks} blocks of {layout.rows} environments")
        self._map = mmap.mmap(self.fd, nbytes)
        self.memory: Array = np.frombuffer(self._map, np.uint8)
        self.fields: dict[str, Array] = {
            name: self._array(field.offset, field.shape, field.dtype)
            for name, field in {**layout.request_fields, **layout.reply_fields}.items()
        }
        self.requests = self._counters(0)
        self.replies = self._counters(layout.groups * CACHE_LINE)

    def reset_counters(self, block: int) -> None:
        """Set a block's counters to zero, before it is granted to a new lease."""
        self.requests[block] = 0
        self.replies[block] = 0

    def count_reply(self, block: int, group: int) -> None:
        """A group's request is answered. An actor may have written anything into either counter."""
        self.replies[block, group] = self.requests[block, group]

    def close(self) -> None:
        """Close the file and let go of the memory; it is unmapped when the last view of it is gone."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        empty = np.empty(0, np.uint8)
        self.fields, self.memory, self.requests, self.replies = {}, empty, empty, empty
        # Never mmap.close(): an ndarray keeps the map alive, but does not keep it from being closed.
        del self._map

    def __enter__(self) -> Slab:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        of_one_block = np.ndarray(shape, dtype, self._map, offset).strides
        strides = (self.layout.block_bytes, *of_one_block)
        return np.ndarray((self.blocks, *shape), dtype, self._map, offset, strides)

    def _counters(self, offset: int) -> Array:
        shape = (self.blocks, self.layout.groups)
        strides = (self.layout.block_bytes, CACHE_LINE)
        return np.ndarray(shape, np.uint64, self._map, offset, strides)


class Block:
    """One lease's memory, as its actor (or the gateway on the actor's behalf) sees it.

    Attributes
    ----------
    requests, replies : ndarray
        uint64 counters of the groups, shape ``[G]``.
    """

    def __init__(self, layout: BlockLayout, memory: Any) -> None:
        self.layout = layout
        self.requests: Array = np.ndarray(layout.groups, np.uint64, memory, 0, (CACHE_LINE,))
        self.replies: Array = np.ndarray(
            layout.groups, np.uint64, memory, layout.groups * CACHE_LINE, (CACHE_LINE,)
        )
        request = self._split(layout.request_fields, memory)
        reply = self._split(layout.reply_fields, memory)
        self._rows = [{**request[g], **reply[g]} for g in range(layout.groups)]
        self._request_bytes = [_byte_views(views) for views in request]
        self._reply_bytes = [_byte_views(views) for views in reply]

    @classmethod
    def map(cls, fd: int, layout: BlockLayout, index: int) -> Block:
        """Map block `index` of the slab behind `fd`, and none of its other pages.

        The caller may close `fd` afterwards.

        Raises
        ------
        TransportError
            If the file behind `fd` has no such block.
        """
        offset = index * layout.block_bytes
        size = os.fstat(fd).st_size
        if index < 0 or offset + layout.block_bytes > size:
            raise TransportError(
                f"block {index} of {layout.block_bytes} bytes does not lie within the slab of {size} bytes: "
                "actor and learner disagree on the layout"
            )
        return cls(layout, mmap.mmap(fd, layout.block_bytes, offset=offset))

    @classmethod
    def private(cls, layout: BlockLayout) -> Block:
        """A block in this process's own memory, zero at start."""
        return cls(layout, mmap.mmap(-1, layout.block_bytes))

    @classmethod
    def of(cls, slab: Slab, index: int) -> Block:
        """Block `index` of a slab in this process."""
        if not 0 <= index < slab.blocks:
            raise TransportError(f"block {index} is not one of the slab's {slab.blocks}")
        size = slab.layout.block_bytes
        return cls(slab.layout, slab.memory[index * size : (index + 1) * size].data)

    def rows(self, group: int) -> dict[str, Array]:
        """Views of a group's rows, ``[E, ...]`` for every field, action included."""
        return self._rows[group]

    def count_request(self, group: int) -> None:
        """Raise a group's request counter: its rows are written, the doorbell comes next."""
        self.requests[group] += np.uint64(1)

    def count_reply(self, group: int) -> None:
        """Raise a group's reply counter: its actions are written."""
        self.replies[group] += np.uint64(1)

    def pack_request(self, group: int) -> bytes:
        """A group's request half as `layout.request_bytes` bytes, field after field."""
        return b"".join(self._request_bytes[group])

    def request_parts(self, group: int) -> list[memoryview]:
        """The parts of a packed request, without a copy; they change when the rows are written."""
        return self._request_bytes[group]

    def reply_parts(self, group: int) -> list[memoryview]:
        """The parts of a packed reply, without a copy; they change when the rows are written."""
        return self._reply_bytes[group]

    def unpack_request(self, group: int, data: bytes | memoryview) -> None:
        """Write a packed request into a group's rows.

        Raises
        ------
        TransportError
            If the length is not `layout.request_bytes`; nothing is written then.
        """
        _scatter(data, self._request_bytes[group], self.layout.request_bytes, "request")

    def pack_reply(self, group: int) -> bytes:
        """A group's reply half as `layout.reply_bytes` bytes."""
        return b"".join(self._reply_bytes[group])

    def unpack_reply(self, group: int, data: bytes | memoryview) -> None:
        """Write a packed reply into a group's rows; errors as `unpack_request`."""
        _scatter(data, self._reply_bytes[group], self.layout.reply_bytes, "reply")

    def close(self) -> None:
        """Let go of the memory; it is unmapped when the last view of it is gone."""
        empty = np.empty(0, np.uint64)
        self._rows, self._request_bytes, self._reply_bytes = [], [], []
        self.requests, self.replies = empty, empty

    def _split(self, fields: Mapping[str, Field], memory: Any) -> list[dict[str, Array]]:
        envs = self.layout.envs
        whole = {
            name: np.ndarray(field.shape, field.dtype, memory, field.offset) for name, field in fields.items()
        }
        return [
            {name: array[g * envs : (g + 1) * envs] for name, array in whole.items()}
            for g in range(self.layout.groups)
        ]


def _allocate(nbytes: int, what: str) -> int:
    """Make the anonymous file: allocated in full, never resized."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    advice = "lower rollout.max_envs, actor.groups or actor.envs_per_group"
    size = f"{nbytes / 2**20:.1f} MiB for the slab ({what})"
    if nbytes > installed:
        raise TransportError(
            f"{size}: more than this machine's {installed / 2**20:.0f} MiB of memory; {advice}"
        )
    fd = os.memfd_create("seedflow-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, nbytes)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        os.close(fd)
        raise TransportError(f"{size} could not be allocated: {error.strerror}; {advice}") from error
    return fd


def _byte_views(arrays: Mapping[str, Array]) -> list[memoryview]:
    return [array.reshape(-1).view(np.uint8).data for array in arrays.values()]


def _scatter(data: bytes | memoryview, parts: list[memoryview], expected: int, what: str) -> None:
    source = memoryview(data)
    if source.nbytes != expected:
        raise TransportError(
            f"a packed {what} has {source.nbytes} bytes, expected {expected}: "
            "actor and learner disagree on the layout"
        )
    offset = 0
    for part in parts:
        part[:] = source[offset : offset + part.nbytes]
        offset += part.nbytes


def _nbytes(field: Field) -> int:
    return math.prod(field.shape) * field.dtype.itemsize


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

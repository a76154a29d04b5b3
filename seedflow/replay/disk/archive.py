"""Zip archives whose entries are stored uncompressed, one after the other, and nothing else.

The archives are plain zip files without extensions (PKWARE's APPNOTE 6.3.10: no compression, no encryption,
no Zip64, no comments, no extra fields, no gaps), which any program reads. Our reader takes no other
kind: an archive in which anything is there twice or means nothing here is refused.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from seedflow.checkpoints.generations import blocks
from seedflow.errors import CheckpointDamaged, CheckpointError

MAX_BYTES = 2**32 - 2**20
MAX_ENTRIES = 10_000

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_NEEDED = 20  # the version of the specification that a reader needs
_MIDNIGHT = (0, 33)  # 1980-01-01 00:00: equal content gives equal archives
_NAME = re.compile(rb"[!-~]{1,1000}")


@dataclass(frozen=True)
class Entry:
    """A file that is to be stored.

    Attributes
    ----------
    pieces
        Yields its content; called twice.
    """

    name: str
    size: int
    pieces: Callable[[], Iterable[bytes]]


@dataclass(frozen=True)
class Span:
    """Where the content of an entry is."""

    offset: int
    size: int


def archive_pieces(entries: Sequence[Entry]) -> Iterator[bytes]:
    """An archive as a stream of bytes.

    Raises
    ------
    CheckpointError
        When it would be larger than a plain archive can be.
    """
    if sum(entry.size + len(entry.name) + 100 for entry in entries) > MAX_BYTES:
        raise CheckpointError(f"an archive of more than {MAX_BYTES} bytes cannot be written; use directories")
    directory, offset = [], 0
    for entry in entries:
        crc = 0
        for block in blocks(entry.pieces()):
            crc = zlib.crc32(block, crc)
        name = entry.name.encode("ascii")
        header = _local(name, entry.size, crc)
        yield header
        yield from entry.pieces()
        directory.append(_central(name, entry.size, crc, offset))
        offset += len(header) + entry.size
    size = sum(map(len, directory))
    yield from directory
    yield _END.pack(b"PK\5\6", 0, 0, len(entries), len(entries), size, offset, 0)


def read_directory(read: Callable[[int, int], bytes], size: int) -> dict[str, Span]:
    """Find the entries of an archive.

    Parameters
    ----------
    read
        Reads (offset, number of bytes).
    size
        Of the archive.

    Raises
    ------
    CheckpointDamaged
        When it is not an archive of the kind that `archive_pieces` writes.
    """
    if size < _END.size:
        raise CheckpointDamaged(f"it has {size} bytes and is no zip archive")
    signature, *zeros, count, same, length, begin, comment = _END.unpack(read(size - _END.size, _END.size))
    if signature != b"PK\5\6" or any(zeros) or count != same or comment or count > MAX_ENTRIES:
        raise CheckpointDamaged("it does not end as a plain zip archive does")
    if begin + length + _END.size != size or length < count * _CENTRAL.size:
        raise CheckpointDamaged("its zip directory is not where it should be")
    data = read(begin, length)
    spans: dict[str, Span] = {}
    position = offset = 0
    for _ in range(count):
        if position + _CENTRAL.size > length:
            raise CheckpointDamaged("its zip directory is cut off")
        fields = _CENTRAL.unpack_from(data, position)
        crc, stored, name_length, where = fields[7], fields[9], fields[10], fields[16]
        position += _CENTRAL.size
        name = data[position : position + name_length]
        position += name_length
        if _NAME.fullmatch(name) is None or where != offset:
            raise CheckpointDamaged(f"its zip entry {name[:100]!r} has a strange name or place")
        if _central(name, stored, crc, offset) != _CENTRAL.pack(*fields) + name:
            raise CheckpointDamaged(f"its zip entry {name[:100]!r} is compressed, encrypted or extended")
        offset += _LOCAL.size + len(name)
        if name.decode() in spans or offset + stored > begin:
            raise CheckpointDamaged(f"its zip entry {name[:100]!r} is there twice or too long")
        spans[name.decode()] = Span(offset, stored)
        offset += stored
    if position != length or offset != begin:
        raise CheckpointDamaged("there is something between its zip entries")
    return spans


def _local(name: bytes, size: int, crc: int) -> bytes:
    return _LOCAL.pack(b"PK\3\4", _NEEDED, 0, 0, *_MIDNIGHT, crc, size, size, len(name), 0) + name


def _central(name: bytes, size: int, crc: int, offset: int) -> bytes:
    made_by = _NEEDED
    head = (b"PK\1\2", made_by, _NEEDED, 0, 0, *_MIDNIGHT, crc, size, size)
    return _CENTRAL.pack(*head, len(name), 0, 0, 0, 0, 0, offset) + name

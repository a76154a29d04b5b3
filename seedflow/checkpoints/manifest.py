"""The manifest: one JSON file that says what a generation consists of.

It ends with a CRC32C of itself, computed with eight zeros in the checksum's place. That, and the keys
``format`` and ``version``, stay in all later versions, so that a damaged manifest can be told from a newer
one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from seedflow.checkpoints.store import Store, checked_path
from seedflow.errors import CheckpointDamaged, CheckpointError

FORMAT = "seedflow-checkpoint"
VERSION = 2
MAX_BYTES = 64 * 2**20
DIRECTORY = "manifests"

_SEAL = re.compile(rb'"crc32c": "([0-9a-f]{8})"\n}\n\Z')
_ZEROS = b"00000000"
_PIECE_BYTES = 4 * 2**20
_NAME = re.compile(DIRECTORY + r"/(\d{8})\.json")


def manifest_path(generation: int) -> str:
    """Where the manifest of a generation is."""
    return f"{DIRECTORY}/{generation:08d}.json"


def generation_of(path: str) -> int | None:
    """The generation whose manifest a path is, if it is one."""
    match = _NAME.fullmatch(path)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class StoredFile:
    """A file of a generation: where it is, and what is in it."""

    path: str
    size: int
    crc32c: int

    def read(self, store: Store) -> bytes:
        """All of it, verified.

        Raises
        ------
        CheckpointDamaged
            When it is missing, or not what was written.
        """
        self.check_size(store)
        data = store.read(self.path, 0, self.size)
        self.check(store, data)
        return data

    def check(self, store: Store, data: bytes) -> None:
        """Verify what was read."""
        self._compare(store, google_crc32c.value(data))

    def verify(self, store: Store) -> None:
        """Read and verify it piece by piece, which takes little memory."""
        self.check_size(store)
        crc = 0
        for offset in range(0, self.size, _PIECE_BYTES):
            crc = google_crc32c.extend(
                crc, store.read(self.path, offset, min(_PIECE_BYTES, self.size - offset))
            )
        self._compare(store, crc)

    def _compare(self, store: Store, crc32c: int) -> None:
        if crc32c != self.crc32c:
            raise CheckpointDamaged(
                f"{store}/{self.path} is damaged: its checksum differs from the manifest's"
            )

    def check_size(self, store: Store) -> None:
        """Look whether it is there in full, without reading it."""
        size = store.size(self.path)
        if size != self.size:
            raise CheckpointDamaged(f"{store}/{self.path} has {size} bytes instead of {self.size}")


@dataclass(frozen=True)
class Part:
    """A part of a generation: files, and JSON that says how to read them."""

    files: tuple[StoredFile, ...]
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """What a generation consists of.

    Attributes
    ----------
    created
        Unix seconds.
    parts
        By name. Files may be shared with other generations.
    state
        JSON that concerns no part alone.
    """

    generation: int
    created: float
    parts: Mapping[str, Part]
    state: dict[str, Any]

    @property
    def files(self) -> list[StoredFile]:
        """The files of all parts."""
        return [file for part in self.parts.values() for file in part.files]

    def encode(self) -> bytes:
        """The manifest as the bytes of its file."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "generation": self.generation,
            "created": self.created,
            "state": self.state,
            "parts": {
                name: {
                    "files": [
                        {"path": file.path, "bytes": file.size, "crc32c": f"{file.crc32c:08x}"}
                        for file in part.files
                    ],
                    "state": part.state,
                }
                for name, part in self.parts.items()
            },
        }
        text = json.dumps(document, indent=1, allow_nan=False)
        return seal(text.encode())

    @classmethod
    def read(cls, store: Store, generation: int) -> Manifest:
        """Read and check a manifest.

        Raises
        ------
        CheckpointDamaged
            When it is missing or not what was written.
        CheckpointError
            When a newer release wrote it.
        """
        path = manifest_path(generation)
        size = store.size(path)
        if size > MAX_BYTES:
            raise CheckpointDamaged(f"{store}/{path} has {size} bytes, more than a manifest can have")
        try:
            return cls._parse(store.read(path, 0, size), generation)
        except _Newer as newer:
            raise CheckpointError(
                f"{store}/{path} has format version {newer}, this release reads version {VERSION}; "
                "upgrade seedflow"
            ) from None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, CheckpointError) as error:
            if isinstance(error, CheckpointDamaged):
                raise
            raise CheckpointDamaged(f"{store}/{path} cannot be read ({error!r})") from error

    @classmethod
    def _parse(cls, data: bytes, generation: int) -> Manifest:
        sealed = _SEAL.search(data)
        if sealed is None:
            raise ValueError("it is no manifest, or cut off")
        begin, end = sealed.span(1)
        if google_crc32c.value(data[:begin] + _ZEROS + data[end:]) != int(sealed[1], 16):
            raise ValueError("its checksum is wrong")
        document = json.loads(data, parse_constant=_no_constant)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}")
        if _count(document["version"]) != VERSION:
            if document["version"] > VERSION:
                raise _Newer(document["version"])
            raise ValueError(f"version {document['version']!r}, which no release has written")
        if _count(document["generation"]) != generation:
            raise ValueError(f"it belongs to generation {document['generation']!r}")
        created = float(document["created"])
        if not math.isfinite(created):
            raise ValueError(f"created = {created}")
        return cls(
            generation,
            created,
            {str(name): _part(part) for name, part in _object(document["parts"]).items()},
            _object(document["state"]),
        )


class _Newer(Exception):
    """A version that only a newer release can read."""


def seal(text: bytes) -> bytes:
    """Add the checksum to a JSON object that lacks its key ``crc32c``."""
    head = text.rstrip().removesuffix(b"}").rstrip() + b',\n "crc32c": "'
    tail = b'"\n}\n'
    checksum = google_crc32c.value(head + _ZEROS + tail)
    return head + f"{checksum:08x}".encode() + tail


def _part(untrusted: Any) -> Part:
    files = []
    for value in untrusted["files"]:
        path = checked_path(str(value["path"]))
        if "/" not in path or path.startswith(f"{DIRECTORY}/"):
            raise ValueError(f"{path} is no place for a file of a part")
        checksum = str(value["crc32c"])
        if not re.fullmatch("[0-9a-f]{8}", checksum):
            raise ValueError(f"{path} has the checksum {checksum!r}")
        files.append(StoredFile(path, _count(value["bytes"]), int(checksum, 16)))
    if len({file.path for file in files}) != len(files):
        raise ValueError("a file is named twice")
    return Part(tuple(files), _object(untrusted["state"]))


def _object(untrusted: Any) -> dict[str, Any]:
    if not isinstance(untrusted, dict):
        raise TypeError(f"{untrusted!r:.100} where an object was expected")
    return untrusted


def _count(untrusted: Any) -> int:
    if type(untrusted) is not int or not 0 <= untrusted < 2**63:
        raise ValueError(f"{untrusted!r:.100} where a count was expected")
    return untrusted


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")

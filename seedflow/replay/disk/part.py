"""The replay as a part of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from seedflow.checkpoints import Draft, Manifest, Part, Store, StoredFile
from seedflow.errors import CheckpointDamaged, CheckpointError, DamagedChunk
from seedflow.replay.disk.group import SUFFIXES, Content, Form, GroupFiles, write_group
from seedflow.replay.disk.segments import Segment, check_spec, plain_bytes, read_plain
from seedflow.replay.disk.zarr import ZarrArray
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Sequences

REPLAY = "replay"
"""Name of the part."""

FORMAT, VERSION = "seedflow-replay", 1
TABLE_FORMAT, TABLE_VERSION = "seedflow-replay-sequences", 1
DIRECTORY = "sequences"

_COLUMNS = {"generation": np.dtype("<i8"), "first_chunk": np.dtype("<i8"), "priority": np.dtype("<f8")}


@dataclass(frozen=True)
class ReplayPart:
    """What a manifest says about a replay.

    Attributes
    ----------
    table
        Path of the table of sequences, which has `sequences` rows.
    state
        What `Snapshot.state` was.
    files
        Of segments and table, by path.
    """

    spec: ReplaySpec
    segments: tuple[Segment, ...]
    table: str
    sequences: int
    state: dict[str, Any]
    files: Mapping[str, StoredFile]

    def to_part(self) -> Part:
        """As a manifest holds it."""
        state = {
            "format": FORMAT,
            "version": VERSION,
            "spec": self.spec.to_json(),
            "segments": [segment.to_json() for segment in self.segments],
            "sequences": {"path": self.table, "count": self.sequences},
            "state": self.state,
        }
        return Part(tuple(self.files.values()), state)

    @classmethod
    def of(cls, store: Store, manifest: Manifest) -> ReplayPart:
        """The replay of a generation.

        Raises
        ------
        CheckpointError
            When there is none, or a newer release wrote it, or it exceeds what a checkpoint can hold.
        CheckpointDamaged
            When what the manifest says makes no sense.
        """
        where = f"generation {manifest.generation} in {store}"
        if REPLAY not in manifest.parts:
            raise CheckpointError(f"{where} holds no replay")
        part = manifest.parts[REPLAY]
        version = part.state.get("version")
        if part.state.get("format") != FORMAT or type(version) is not int:
            raise CheckpointDamaged(
                f"the replay of {where} is none: its format is {part.state.get('format')!r:.100}"
            )
        if version > VERSION:
            raise CheckpointError(
                f"the replay of {where} has format version {version}, this release reads version {VERSION}; "
                "upgrade seedflow"
            )
        spec = check_spec(ReplaySpec.from_json(part.state.get("spec")))
        try:
            return cls._parse(part, spec)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointDamaged(f"the replay of {where} cannot be read: {error!r}") from error

    @classmethod
    def _parse(cls, part: Part, spec: ReplaySpec) -> ReplayPart:
        segments = tuple(Segment.from_json(value) for value in part.state["segments"])
        table, count = part.state["sequences"]["path"], part.state["sequences"]["count"]
        if type(count) is not int or not 0 <= count < 2**40:
            raise ValueError(f"{count!r:.100} sequences")
        if not isinstance(table, str) or not table.startswith(f"{DIRECTORY}/"):
            raise ValueError(f"{table!r:.100} is no path of a table")
        state = part.state["state"]
        if not isinstance(state, dict):
            raise TypeError("the state is no object")
        files = {file.path: file for file in part.files}
        cls._check_files(files, [table, *(segment.path for segment in segments)])
        return cls(spec, segments, table, count, state, files)

    @staticmethod
    def _check_files(files: Mapping[str, StoredFile], groups: list[str]) -> None:
        if len(set(groups)) != len(groups):
            raise ValueError("a group is named twice")
        owned = {path for path in files if path in groups or "/".join(path.split("/")[:2]) in groups}
        if len(owned) != len(files):
            raise ValueError(f"file {min(set(files) - owned)} belongs to no group")

    def read_sequences(self, store: Store) -> Sequences:
        """The table of sequences, verified.

        Raises
        ------
        CheckpointDamaged
            When it is missing or not what was written.
        """
        arrays = table_arrays(self.sequences)
        own = sum(file.size for path, file in self.files.items() if f"{path}/".startswith(f"{self.table}/"))
        if own > 24 * self.sequences + 2**16:
            raise CheckpointDamaged(
                f"{store}/{self.table} has {own} bytes, too many for {self.sequences} sequences"
            )
        group = GroupFiles(store, self.table, self.files, arrays)
        _, problems = group.read_whole()
        if problems:
            raise CheckpointDamaged(problems[0])
        try:
            return Sequences(
                *(read_plain(group, array).astype(array.dtype.newbyteorder("=")) for array in arrays)
            )
        except (CheckpointDamaged, DamagedChunk) as error:
            raise CheckpointDamaged(f"{group}: {error}") from error


def table_arrays(count: int) -> list[ZarrArray]:
    """The arrays of the table of sequences."""
    return [ZarrArray(name, (count,), dtype, ("sequence",)) for name, dtype in _COLUMNS.items()]


def write_table(draft: Draft, sequences: Sequences, form: Form) -> tuple[str, tuple[StoredFile, ...]]:
    """Write the table of sequences; returns its path and files."""
    contents: list[tuple[ZarrArray, Content | None]] = []
    for array in table_arrays(len(sequences)):
        data = plain_bytes(getattr(sequences, array.path).astype(array.dtype))
        content = Content(len(data), partial(list, [data])) if len(sequences) else None
        contents.append((array, content))
    path = draft.unique_path(DIRECTORY, f"{draft.generation:08d}", SUFFIXES[form])
    attributes = {"seedflow": {"format": TABLE_FORMAT, "version": TABLE_VERSION}}
    return path, write_group(draft, path, attributes, contents)

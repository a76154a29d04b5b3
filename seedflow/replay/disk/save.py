"""Writing the replay: only what is new."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seedflow.checkpoints import Draft, Part, StoredFile
from seedflow.errors import CheckpointError
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.part import REPLAY, ReplayPart, write_table
from seedflow.replay.disk.segments import (
    MAX_BYTES,
    MAX_CHUNKS,
    Segment,
    StoredChunks,
    check_spec,
    cut,
    write_segment,
)
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Snapshot

MAX_SMALL = 32
"""Segments less than half full that may be there before some of them are written anew as one."""


@dataclass(frozen=True, eq=False)
class _Kept:
    """A segment of the generation before that still holds chunks of use."""

    segment: Segment
    files: tuple[StoredFile, ...]
    ids: NDArray[np.int64]  # of the chunks of use

    @property
    def small(self) -> bool:
        size = sum(file.size for file in self.files)
        return len(self.ids) < MAX_CHUNKS // 2 and size < MAX_BYTES // 2


class ReplaySaver:
    """Writes snapshots of one replay as parts of generations.

    Chunks that are in a segment of the draft's base are not written again: a save costs what arrived since
    the one before, and the table of sequences. Beyond the snapshot it takes no memory to speak of.

    Parameters
    ----------
    form
        A segment as one zip archive, or as a directory of files.
    avoid
        Segments found damaged when the replay was restored: what is left of them is written anew.
    """

    def __init__(self, form: Form = "zip", avoid: Collection[str] = ()) -> None:
        self._form, self._avoid = form, frozenset(avoid)
        self._ids: dict[str, NDArray[np.int64]] = {}  # of the chunks in each segment known

    def write(self, draft: Draft, snapshot: Snapshot) -> Part:
        """Write a snapshot; the part is to be added to the draft as `REPLAY`.

        Raises
        ------
        CheckpointError
            When it cannot be written, or the spec is beyond what a checkpoint can hold.
        """
        spec = check_spec(snapshot.spec)
        alive = np.fromiter((chunk.id for chunk in snapshot.chunks), np.int64, len(snapshot.chunks))
        kept = self._kept(draft, spec, alive)
        now = time.time()
        created: dict[int, float] = {}
        for old in self._too_many(kept):
            kept.remove(old)
            created |= dict.fromkeys(old.ids.tolist(), old.segment.created)
        there = np.concatenate([np.zeros(0, np.int64), *(old.ids for old in kept)])
        new = ~np.isin(alive, there, assume_unique=True)
        segments = [old.segment for old in kept]
        files = [file for old in kept for file in old.files]
        for chunks in cut(snapshot.chunks[row] for row in np.flatnonzero(new).tolist()):
            began = min(created.get(chunk.id, now) for chunk in chunks)
            segment, written = write_segment(draft, spec, chunks, self._form, began)
            segments.append(segment)
            files.extend(written)
            self._ids[segment.path] = np.array([chunk.id for chunk in chunks], np.int64)
        path, written = write_table(draft, snapshot.sequences, self._form)
        files.extend(written)
        self._ids = {segment.path: self._ids[segment.path] for segment in segments}
        part = ReplayPart(
            spec,
            tuple(sorted(segments, key=lambda segment: segment.path)),
            path,
            len(snapshot.sequences),
            snapshot.state,
            {file.path: file for file in files},
        )
        return part.to_part()

    def _kept(self, draft: Draft, spec: ReplaySpec, alive: NDArray[np.int64]) -> list[_Kept]:
        """What the base has of the snapshot. A segment that cannot be read is written anew."""
        if draft.base is None or REPLAY not in draft.base.parts:
            return []
        base = ReplayPart.of(draft.store, draft.base)
        if base.spec != spec:
            return []
        kept = []
        for segment in base.segments:
            if segment.path in self._avoid:
                continue
            ids = self._ids.get(segment.path)
            if ids is None:
                try:
                    ids = StoredChunks(draft.store, spec, segment, base.files).ids
                except CheckpointError:
                    continue
                self._ids[segment.path] = ids
            useful = ids[_among(ids, alive)]
            if len(useful):
                kept.append(_Kept(segment, _files_of(segment, base), useful))
        return kept

    def _too_many(self, kept: Sequence[_Kept]) -> list[_Kept]:
        """The smaller half of the small segments, where there are too many of them."""
        small = sorted((old for old in kept if old.small), key=lambda old: len(old.ids))
        return small[: len(small) // 2] if len(small) > MAX_SMALL else []


def _among(ids: NDArray[np.int64], alive: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which ids are alive; both ascend."""
    if not len(alive):
        return np.zeros(len(ids), np.bool_)
    found: NDArray[np.bool_] = alive[np.searchsorted(alive, ids).clip(0, len(alive) - 1)] == ids
    return found


def _files_of(segment: Segment, part: ReplayPart) -> tuple[StoredFile, ...]:
    return tuple(file for path, file in part.files.items() if f"{path}/".startswith(f"{segment.path}/"))

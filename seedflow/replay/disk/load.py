"""Reading the replay: every checksum verified, nothing believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seedflow.checkpoints import Manifest, Store
from seedflow.errors import CheckpointDamaged, CheckpointError
from seedflow.replay.chunks import Chunk
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.disk.places import Places
from seedflow.replay.disk.segments import StoredChunks
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Sequences, Snapshot

OnDamage = Literal["error", "drop"]


@dataclass(frozen=True)
class LoadedReplay:
    """A snapshot as it was read.

    Attributes
    ----------
    left_out
        Older sequences for which there was no room.
    lost_chunks, lost_sequences
        What was damaged, with ``on_damage="drop"``.
    problems
        What the damage is.
    damaged
        Paths of the segments that have some; a `ReplaySaver` is to avoid them.
    """

    snapshot: Snapshot
    left_out: int = 0
    lost_chunks: int = 0
    lost_sequences: int = 0
    problems: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


def load_replay(
    store: Store,
    manifest: Manifest,
    *,
    spec: ReplaySpec | None = None,
    capacity: int | None = None,
    max_bytes: int | None = None,
    on_damage: OnDamage = "error",
) -> LoadedReplay:
    """Read the replay of a generation.

    Parameters
    ----------
    spec
        What the replay must hold; by default, whatever it holds.
    capacity, max_bytes
        Room: the newest sequences that fit are read, in number and in memory.
    on_damage
        ``error``: any damage to what is read is an error. ``drop``: sequences with a damaged or missing chunk
        are left out and counted; the rest is as it was.

    Raises
    ------
    CheckpointDamaged
        Says what is damaged. The manifest and the table of sequences cannot be dropped.
    CheckpointError
        When there is no replay, a newer release wrote it, or its spec is another one; that is found before
        any chunk is read.
    """
    part = ReplayPart.of(store, manifest)
    if spec is not None and (difference := spec.describe_difference(part.spec)) is not None:
        raise CheckpointError(
            f"the replay of generation {manifest.generation} in {store} holds other arrays than this run's "
            f"(here: this run, there: the checkpoint): {difference}; "
            "resume with the settings of the run that saved it"
        )
    sequences = part.read_sequences(store)
    check_sequences(sequences, f"{store}/{part.table}")
    damage = Damage(on_damage)
    stored = open_segments(store, part, damage)
    places = Places(stored, part.spec)
    begins, complete = places.find(sequences)
    if not complete.all():
        lost = sequences.generation[~complete]
        damage.found(f"{len(lost)} sequences of {store}/{part.table}, the first {lost[0]}, lack a chunk")
    left_out = len(sequences) - places.room(begins, complete, capacity, max_bytes)
    sequences, begins, complete = sequences[left_out:], begins[left_out:], complete[left_out:]

    wanted = places.covered(begins[complete])
    chunks, lost_chunks = _read(stored, places, wanted, damage)
    whole = complete & ~places.touched(begins, np.isin(places.ids, list(lost_chunks)))
    if not whole.all():
        used = set(places.ids[places.covered(begins[whole])].tolist())
        chunks = {number: chunk for number, chunk in chunks.items() if number in used}
    ordered = tuple(chunks[number] for number in sorted(chunks))
    return LoadedReplay(
        Snapshot(part.spec, ordered, sequences[whole], part.state),
        left_out,
        len(lost_chunks),
        int((~whole).sum()),
        tuple(damage.problems),
        tuple(dict.fromkeys(damage.segments)),
    )


class Damage:
    """What to do about damage."""

    def __init__(self, policy: OnDamage) -> None:
        self._policy = policy
        self.problems: list[str] = []
        self.segments: list[str] = []

    def found(self, problem: str, segment: str | None = None, cause: CheckpointError | None = None) -> None:
        """Note a problem, of a segment if it is one's, or raise it."""
        if self._policy == "error":
            raise CheckpointDamaged(problem) from cause
        self.problems.append(problem)
        if segment is not None:
            self.segments.append(segment)


def check_sequences(sequences: Sequences, where: str) -> None:
    """Refuse a table that no replay can have."""
    generations, priorities = sequences.generation, sequences.priority
    if len(sequences) and (generations[0] < 0 or (np.diff(generations) <= 0).any()):
        raise CheckpointDamaged(f"{where}: the generations of the sequences do not ascend")
    if not (np.isfinite(priorities) & (priorities >= 0)).all():
        raise CheckpointDamaged(f"{where}: a priority is negative or not finite")


def open_segments(store: Store, part: ReplayPart, damage: Damage) -> list[StoredChunks]:
    """The segments that can be read; what is wrong with the others is damage."""
    stored = []
    for segment in part.segments:
        try:
            stored.append(StoredChunks(store, part.spec, segment, part.files))
        except CheckpointDamaged as error:
            damage.found(str(error), segment.path, error)
    return stored


def _read(
    stored: Sequence[StoredChunks], places: Places, wanted: NDArray[np.bool_], damage: Damage
) -> tuple[dict[int, Chunk], set[int]]:
    """The wanted chunks by id, and the ids of those that are damaged."""
    chunks: dict[int, Chunk] = {}
    lost: set[int] = set()
    for number, segment in enumerate(stored):
        own = np.zeros(len(segment.ids), np.bool_)
        own[places.rows[wanted & (places.segments == number)]] = True
        if not own.any():
            continue
        try:
            found, damaged, problems = segment.read(own)
        except CheckpointDamaged as error:
            damage.found(str(error), segment.segment.path, error)
            lost.update(segment.ids[own].tolist())
            continue
        for identity, problem in damaged.items():
            damage.found(f"{segment.files}: chunk {identity}: {problem}", segment.segment.path)
        for problem in problems:
            damage.found(problem, segment.segment.path)
        lost.update(damaged)
        chunks.update((chunk.id, chunk) for chunk in found)
    return chunks, lost

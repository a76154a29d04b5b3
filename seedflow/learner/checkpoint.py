"""Run checkpoints: what the learner saves, as parts of numbered generations.

Tensors are one safetensors file, the part ``tensors``; a replay is the part ``replay``, written and read by
`seedflow.replay.disk`; counters are the generation's JSON. How a generation is committed, found and
checked is `seedflow.checkpoints`. A checkpoint is untrusted input: nothing in it is unpickled.

::

    checkpoints/
      tensors/00000012-4f0a….safetensors
      manifests/00000012.json
      writer.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from seedflow.checkpoints import Draft, Generations, Manifest, Part, Store, Writer, WriterLock, open_store
from seedflow.config import ReplayConfig
from seedflow.errors import CheckpointDamaged
from seedflow.replay.disk.load import LoadedReplay, load_replay
from seedflow.replay.disk.part import REPLAY
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.snapshot import Snapshot

TENSORS = "tensors"


@dataclass(frozen=True)
class Checkpoint:
    """One loaded generation: named tensors (on the CPU) and JSON state.

    Attributes
    ----------
    manifest
        What else belongs to the generation.
    replay
        The replay, where it was asked for.
    skipped
        Why newer generations could not be used, newest first.
    """

    manifest: Manifest
    tensors: dict[str, Tensor]
    skipped: tuple[str, ...] = ()
    replay: LoadedReplay | None = None

    @property
    def generation(self) -> int:
        return self.manifest.generation

    @property
    def state(self) -> dict[str, Any]:
        return self.manifest.state

    def section(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix/``, without it."""
        start = f"{prefix}/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


@dataclass(frozen=True)
class ReplayWanted:
    """Which replay a run can go on with.

    Attributes
    ----------
    spec
        What it must hold.
    config
        How much of it, and what to do about damage.
    max_bytes
        Memory for it.
    """

    spec: ReplaySpec
    config: ReplayConfig
    max_bytes: int

    def load(self, store: Store, manifest: Manifest) -> LoadedReplay:
        """Read it from a generation."""
        return load_replay(
            store,
            manifest,
            spec=self.spec,
            capacity=self.config.capacity,
            max_bytes=self.max_bytes,
            on_damage=self.config.on_damage,
        )


class CheckpointStore:
    """The checkpoints of one run.

    Parameters
    ----------
    directory
        Usually ``RUN_DIR/checkpoints``; made when the first generation is saved. Or whatever `open_store`
        takes.
    keep
        Generations kept; older ones are removed once a new one is committed.
    writer
        Who writes; the calling process by default, in no run on a cluster.
    """

    def __init__(self, directory: Path | str, keep: int = 3, writer: Writer | None = None) -> None:
        store = open_store(directory)
        self._lock = WriterLock(store, writer)
        self._generations = Generations(store, keep, self._lock.fence)
        self._saver = ReplaySaver()

    def lock(self) -> str | None:
        """Keep other writers out, until `unlock` or the end of the process.

        Returns
        -------
        str or None
            Who held the lock before and has died without letting go of it.

        Raises
        ------
        CheckpointFenced
            When a later start of this run's learner has it, or has had it.
        CheckpointConflict
            When another process holds it.
        """
        self._lock.acquire()
        return self._lock.succeeds

    def unlock(self) -> None:
        """Let other writers in again; may be called twice."""
        self._lock.release()

    def generations(self) -> list[int]:
        """Committed generations, oldest first."""
        return self._generations.numbers()

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any], replay: Snapshot | None = None) -> int:
        """Commit the next generation; returns its number when it is on disk.

        Raises
        ------
        CheckpointConflict
            When another process has saved to the same place.
        CheckpointError
            When it cannot be written; what was saved before is untouched.
        """
        with self._generations.draft() as draft:
            draft.add(TENSORS, tensors_part(draft, tensors))
            if replay is not None:
                draft.add(REPLAY, self._saver.write(draft, replay))
            return draft.commit(state)

    def load(self, generation: int | None = None) -> Checkpoint:
        """Load a generation, by default the newest.

        Raises
        ------
        CheckpointDamaged
            When it is damaged; the message names a generation to go back to.
        CheckpointError
            When there is none, or when it was written by a newer release.
        """
        return self._load(generation, fall_back=False)

    def restore(self, replay: ReplayWanted | None = None) -> Checkpoint:
        """Load the newest generation that is whole, to go on from it.

        Parameters
        ----------
        replay
            The replay that belongs to it, if there is one.

        Raises
        ------
        CheckpointError
            When there is none.
        """
        checkpoint = self._load(None, fall_back=True, replay=replay)
        self._generations.go_on_from(checkpoint.manifest)
        if checkpoint.replay is not None:
            self._saver = ReplaySaver(avoid=checkpoint.replay.damaged)
        return checkpoint

    def load_replay(self, replay: ReplayWanted) -> LoadedReplay:
        """Load the replay of the newest generation in which it is whole.

        Raises
        ------
        CheckpointError
            When there is none, or it holds other arrays.
        """
        store = self._generations.store
        return self._generations.restore(lambda manifest: replay.load(store, manifest)).value

    def _load(
        self, generation: int | None, fall_back: bool, replay: ReplayWanted | None = None
    ) -> Checkpoint:
        store = self._generations.store

        def read(manifest: Manifest) -> tuple[dict[str, Tensor], LoadedReplay | None]:
            tensors = read_tensors(store, manifest)
            return tensors, None if replay is None else replay.load(store, manifest)

        found = self._generations.restore(read, generation, fall_back=fall_back)
        tensors, loaded = found.value
        return Checkpoint(found.manifest, tensors, found.skipped, loaded)


def tensors_part(draft: Draft, tensors: dict[str, Tensor]) -> Part:
    """Write tensors as a part of a generation."""
    data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
    path = draft.unique_path(TENSORS, f"{draft.generation:08d}", ".safetensors")
    return Part((draft.write(path, [data]),))


def read_tensors(store: Store, manifest: Manifest) -> dict[str, Tensor]:
    """Read the tensors of a generation.

    Raises
    ------
    CheckpointDamaged
        When they are missing or not what was written.
    """
    files = manifest.parts[TENSORS].files if TENSORS in manifest.parts else ()
    if len(files) != 1:
        raise CheckpointDamaged(f"generation {manifest.generation} in {store} has no file of tensors")
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(files[0].read(store))
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointDamaged(f"{store}/{files[0].path} holds no tensors ({error!r})") from error
    return tensors

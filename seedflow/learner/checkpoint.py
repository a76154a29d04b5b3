"""Run checkpoints: numbered generations, each complete or invisible.

A generation is a file of tensors (safetensors) and a manifest (JSON) that names its size, its hash and
the run's counters. ``manifests/<generation>.json`` is the one commit point: it is written last, under a
temporary name, and renamed; everything before it is fsynced. A crash at any point leaves the newest
committed generation readable. A checkpoint is untrusted input: nothing in it is unpickled, and no path
in it is followed (file names follow from the generation's number).

::

    checkpoints/
      tensors/00000012.safetensors
      manifests/00000012.json
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from seedflow.errors import CheckpointError

FORMAT_VERSION = 1
_NAME = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True)
class Checkpoint:
    """One loaded generation: named tensors (on the CPU) and JSON state."""

    generation: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def section(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``prefix/``, without it."""
        start = f"{prefix}/"
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


class CheckpointStore:
    """The checkpoints of one run.

    Parameters
    ----------
    directory
        Usually ``RUN_DIR/checkpoints``; made when the first generation is saved.
    keep
        Generations kept; older ones are removed once a new one is committed.
    """

    def __init__(self, directory: Path, keep: int = 3) -> None:
        self.directory, self._keep = directory, keep

    def generations(self) -> list[int]:
        """Committed generations, oldest first."""
        manifests = self.directory / "manifests"
        if not manifests.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in manifests.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> int:
        """Commit the next generation; returns its number when it is on disk."""
        kept = self.generations()
        generation = kept[-1] + 1 if kept else 1
        data = safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in tensors.items()})
        manifest = {
            "version": FORMAT_VERSION,
            "generation": generation,
            "tensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
            "state": state,
        }
        for part in ("tensors", "manifests"):
            (self.directory / part).mkdir(parents=True, exist_ok=True)
        _write(self._tensors_path(generation), data)
        _write(self._manifest_path(generation), json.dumps(manifest, indent=1).encode())
        for old in [*kept, generation][: -self._keep]:
            self._manifest_path(old).unlink(missing_ok=True)
            self._tensors_path(old).unlink(missing_ok=True)
        return generation

    def load(self, generation: int | None = None) -> Checkpoint:
        """Load a generation, by default the newest.

        Raises
        ------
        CheckpointError
            When there is none, when it is damaged (the message names a generation to go back to), or
            when it was written by a newer release.
        """
        known = self.generations()
        if not known:
            raise CheckpointError(f"{self.directory} holds no checkpoint; has this run saved one yet?")
        if generation is None:
            generation = known[-1]
        elif generation not in known:
            raise CheckpointError(f"{self.directory} has no generation {generation}; it has {known}")
        path = self._manifest_path(generation)
        older = [g for g in known if g < generation]
        advice = f"go back to generation {older[-1]} by removing {path}" if older else "it is the only one"
        try:
            manifest = json.loads(path.read_bytes())
            version = manifest["version"]
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise CheckpointError(
                    f"{path} has format version {version}, this release reads up to {FORMAT_VERSION}; "
                    "upgrade seedflow"
                )
            size, digest = int(manifest["tensors"]["bytes"]), str(manifest["tensors"]["sha256"])
            state = dict(manifest["state"])
            file = self._tensors_path(generation)
            if file.stat().st_size != size:
                raise CheckpointError(f"{file} has {file.stat().st_size} bytes instead of {size}; {advice}")
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise CheckpointError(f"{file} is damaged (its hash differs from the manifest's); {advice}")
            tensors = safetensors.torch.load(data)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read ({error!r}); {advice}") from error
        return Checkpoint(generation, tensors, state)

    def _tensors_path(self, generation: int) -> Path:
        return self.directory / "tensors" / f"{generation:08d}.safetensors"

    def _manifest_path(self, generation: int) -> Path:
        return self.directory / "manifests" / f"{generation:08d}.json"


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it is either there in full, also after a power cut, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""Runs that go on exactly, and a digest of all that they have."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from seedflow.checkpoints import Generations, open_store
from seedflow.config import Config
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.replay.disk.load import load_replay
from tests.small_runs import small_config, small_r2d2

EXACT = {"exact": True}


def digest(run_dir: Path) -> dict[str, str]:
    """Of everything in the newest checkpoint: tensors, replay, random generators, counters."""
    checkpoint = CheckpointStore(run_dir / "checkpoints").load()
    found = {name: _hash(tensor.numpy().tobytes()) for name, tensor in checkpoint.tensors.items()}
    progress = {k: v for k, v in checkpoint.state["progress"].items() if k != "seconds"}
    found["progress"] = repr(progress)
    store = open_store(run_dir / "checkpoints")
    manifest = Generations(store).restore(lambda manifest: None).manifest
    if "replay" in manifest.parts:
        replay = load_replay(store, manifest).snapshot
        found["chunks"] = _hash(*(data for chunk in replay.chunks for data in chunk.data))
        for name in ("generation", "first_chunk", "priority"):
            found[name] = _hash(getattr(replay.sequences, name).tobytes())
        found["replay"] = repr(replay.state)
    return found


def _hash(*pieces: bytes) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()


def exact_config(algorithm: str, total: int, **sections: Any) -> Config:
    """A small run of an algorithm, with a core, an observation that hides something, and evaluation."""
    small = small_r2d2 if algorithm == "r2d2" else small_config
    core = {"core": "lstm", "core_size": 8, "inputs": ["previous_action"]}
    wrappers = [{"select_observation": {"indices": [0, 2]}}]
    return small(
        env={**EXACT, "wrappers": wrappers},
        network=core,
        eval={"every": 150, "episodes": 3, "envs": 2},
        train={"total_agent_steps": total, "torch_threads": 1},
        **sections,
    )

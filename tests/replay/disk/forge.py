"""Checkpoints that somebody has changed, and all that a person may do with them."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c

from seedflow.checkpoints import Generations, LocalStore
from seedflow.checkpoints.manifest import manifest_path, seal
from seedflow.errors import CheckpointError
from seedflow.replay.chunks import Chunk
from seedflow.replay.disk.export import export_minari
from seedflow.replay.disk.health import describe_replay, verify_checkpoints
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.report import report_lines, verified_lines
from tests.replay.disk.ring import Ring, save, saved

MEBIBYTE = 2**20


def uses(root: Path) -> dict[str, Callable[[], object]]:
    """Everything that a person can do with a checkpoint."""
    store = LocalStore(root)

    def load(on_damage: Any) -> object:
        return Generations(store).restore(lambda m: load_replay(store, m, on_damage=on_damage))

    def go_on() -> object:
        generations = Generations(store)
        generations.go_on_from(generations.restore(lambda manifest: manifest).manifest)
        return save(generations, Ring().arrive(60).snapshot())

    out = root.parent / "exported"
    shutil.rmtree(out, ignore_errors=True)
    return {
        "info": lambda: list(report_lines(describe_replay(store))),
        "verify": lambda: list(verified_lines(verify_checkpoints(store))),
        "load": lambda: load("error"),
        "drop": lambda: load("drop"),
        "export": lambda: export_minari(store, out),
        "save": go_on,
    }


def outcomes(root: Path) -> dict[str, str]:
    """The outcome of every use; fails on any exception but the named ones."""
    found = {}
    for name, use in uses(root).items():
        found[name] = "done"
        try:
            use()
        except CheckpointError as error:
            found[name] = str(error)
    return found


@contextmanager
def untouched(outside: Path) -> Iterator[None]:
    """Fail if anything in a directory is different afterwards."""

    def look() -> dict[str, tuple[bytes, int]]:
        files = [path for path in outside.rglob("*") if path.is_file()]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = look()
    yield
    assert look() == before


def rewritten(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and seal it as if it had always been so, with sizes and checksums as they are."""
    path = root / manifest_path(1)
    document = json.loads(path.read_bytes())
    del document["crc32c"]
    change(document)
    for file in document["parts"]["replay"]["files"]:
        target = root / file["path"]
        if target.is_file() and not target.is_symlink() and target.stat().st_size < 2**26:
            data = target.read_bytes()
            file |= {"bytes": len(data), "crc32c": f"{google_crc32c.value(data):08x}"}
    path.write_bytes(seal(json.dumps(document).encode()))


@contextmanager
def little_memory(limit: int = 48 * MEBIBYTE) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def forged(root: Path, chunks: tuple[Chunk, ...], sequences: Any = None) -> LocalStore:
    """A checkpoint of a snapshot that no replay would make."""
    snapshot = Ring(capacity=6).arrive(30).snapshot()
    return saved(root, replace(snapshot, chunks=chunks, sequences=sequences or snapshot.sequences))  # type: ignore[return-value]

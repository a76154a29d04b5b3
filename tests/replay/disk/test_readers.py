"""Other readers of Zarr see what was saved, in both forms."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import tensorstore
import zarr
import zarr.core.sync
import zarr.storage

from seedflow.checkpoints import LocalStore, Manifest
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.snapshot import Snapshot
from tests.replay.disk.ring import SPEC, Ring, saved, values

SNAPSHOT = Ring(capacity=30).arrive(200).snapshot()

PATHS = {
    "observation/image": "fields/observation/image",
    "observation/the speed": "fields/observation/the%20speed",
    "reward": "fields/reward",
    "terminated": "fields/terminated",
    "truncated": "fields/truncated",
    "first": "fields/first",
    "action": "fields/action",
    "lstm": "state/lstm",
    "stack": "state/stack",
}


def expected(snapshot: Snapshot, number: int) -> np.ndarray:
    """What an array holds for all chunks; zeros where core state is absent."""
    array = snapshot.spec.arrays[number]
    rows = []
    for chunk in snapshot.chunks:
        value = values(snapshot.spec, chunk.lane, chunk.position)[number]
        absent = array in snapshot.spec.state and not snapshot.spec.begins(chunk.position)
        rows.append(np.zeros_like(value) if absent else value)
    return np.stack(rows)


@pytest.fixture(autouse=True)
def _zarr_ends_its_threads() -> Iterator[None]:
    yield
    (loop,), (thread,) = zarr.core.sync.loop, zarr.core.sync.iothread
    if loop is not None and thread is not None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()  # cleanup_resources waits for 0.2 s only
        zarr.core.sync.cleanup_resources()


@pytest.fixture(params=["zip", "directory"])
def segment(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The one segment of a small replay."""
    return tmp_path / segment_path(tmp_path, request.param)


def segment_path(root: Path, form: Form) -> str:
    store = saved(root, SNAPSHOT, form)
    part = ReplayPart.of(store, Manifest.read(store, 1))
    assert len(part.segments) == 1
    return part.segments[0].path


def open_group(path: Path) -> tuple[zarr.Group, Any]:
    store = (
        zarr.storage.ZipStore(path, mode="r")
        if path.is_file()
        else zarr.storage.LocalStore(path, read_only=True)
    )
    return zarr.open_group(store, mode="r"), store


def test_zarr_reads_every_array(segment: Path) -> None:
    group, store = open_group(segment)
    for number, array in enumerate(SPEC.arrays):
        found = group[PATHS[array.name]]
        assert found.dtype == array.dtype
        assert (found[:] == expected(SNAPSHOT, number)).all(), array.name
        assert (found[17] == expected(SNAPSHOT, number)[17]).all(), "also one chunk alone"
    for name in ("id", "lane", "position"):
        assert group[name][:].tolist() == [getattr(chunk, name) for chunk in SNAPSHOT.chunks]
    store.close()


def test_zarr_finds_the_consolidated_metadata_and_the_spec(segment: Path) -> None:
    group, store = open_group(segment)
    consolidated = group.metadata.consolidated_metadata
    assert consolidated is not None
    assert set(PATHS.values()) < set(consolidated.flattened_metadata)
    assert group.attrs["seedflow"]["spec"] == SPEC.to_json()
    assert group["fields/observation/image"].metadata.dimension_names == ("chunk", "index", None, None)
    store.close()


def test_tensorstore_reads_every_array(segment: Path) -> None:
    where: dict[str, Any] = {"driver": "file", "path": f"{segment}/"}
    if segment.is_file():
        where = {"driver": "zip", "base": {"driver": "file", "path": str(segment)}}
    for number, array in enumerate(SPEC.arrays):
        kvstore = {**where, "path": f"{where.get('path', '')}{PATHS[array.name]}/"}
        found = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True).result()
        assert (found.read().result() == expected(SNAPSHOT, number)).all(), array.name


def test_dask_reads_every_array(segment: Path) -> None:
    group, store = open_group(segment)
    for number, array in enumerate(SPEC.arrays):
        found = dask.array.from_zarr(group[PATHS[array.name]])
        assert (found.compute(scheduler="synchronous") == expected(SNAPSHOT, number)).all(), array.name
    store.close()


def test_the_table_of_sequences_is_a_group_like_the_others(tmp_path: Path) -> None:
    store = saved(tmp_path, SNAPSHOT)
    table = ReplayPart.of(store, Manifest.read(store, 1)).table
    group, zipped = open_group(tmp_path / table)
    for column in ("generation", "first_chunk", "priority"):
        assert (group[column][:] == getattr(SNAPSHOT.sequences, column)).all()
    zipped.close()


def test_an_empty_table_is_one_too(tmp_path: Path) -> None:
    store = saved(tmp_path, Ring().snapshot())
    table = ReplayPart.of(store, Manifest.read(store, 1)).table
    group, zipped = open_group(tmp_path / table)
    assert group["priority"][:].tolist() == []
    zipped.close()


def test_any_unzip_program_finds_the_archive_in_order(tmp_path: Path) -> None:
    path = tmp_path / segment_path(tmp_path, "zip")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
        archive.extractall(tmp_path / "extracted")
    group, store = open_group(tmp_path / "extracted")
    assert (group["fields/action"][:] == expected(SNAPSHOT, 6)).all()
    store.close()


def test_equal_content_gives_equal_archives(tmp_path: Path) -> None:
    first, second = (LocalStore(tmp_path / name) for name in ("a", "b"))
    paths = [segment_path(tmp_path / name, "zip") for name in ("a", "b")]
    assert first.read(paths[0]) == second.read(paths[1])

"""What fsspec reaches as a store."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from seedflow.checkpoints import LocalStore, Store, open_store
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointError
from tests.checkpoints.conformance import StoreConformance


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Store:
        return FsspecStore(f"memory://{uuid.uuid4().hex}/checkpoints")


class TestLocalFiles(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FsspecStore(f"file://{tmp_path}/checkpoints")


class Overwriting(MemoryFileSystem):
    """A file system that ignores that it must not overwrite."""

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return super().open(path, mode.replace("x", "w"), **kwargs)


def test_a_file_system_that_overwrites_is_refused() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}", Overwriting())
    with pytest.raises(CheckpointError, match="Overwriting overwrites files when told not to"):
        store.clean()
    assert store.paths() == []


class Unreliable(LocalFileSystem):
    """A file system whose requests fail."""

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        raise TimeoutError("the service does not answer")

    def info(self, path: str, **kwargs: Any) -> Any:
        raise TimeoutError("the service does not answer")


def test_errors_of_the_file_system_are_named(tmp_path: Path) -> None:
    store = FsspecStore(f"file://{tmp_path}", Unreliable())
    (tmp_path / "one").touch()
    for use in (store.read, store.size, lambda path: store.write_new(path, [b""])):
        with pytest.raises(CheckpointError, match=r"one cannot be (read|written): .*does not answer"):
            use("one")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"nonsense://bucket cannot be opened: .*nonsense"):
        FsspecStore("nonsense://bucket")


def test_a_place_is_a_directory_a_run_or_a_url(tmp_path: Path) -> None:
    assert str(open_store(tmp_path)) == str(tmp_path)
    assert str(open_store(f"file://{tmp_path}")) == str(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    assert str(open_store(str(tmp_path))) == str(tmp_path / "checkpoints")
    assert isinstance(open_store(tmp_path), LocalStore)
    (tmp_path / "manifests").mkdir()
    assert str(open_store(tmp_path)) == str(tmp_path)
    assert str(open_store("memory://somewhere/else")) == "memory://somewhere/else"

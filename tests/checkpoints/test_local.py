"""A directory as a store: what it survives, and what it does not follow."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from seedflow.checkpoints import LocalStore, Store
from seedflow.checkpoints.syscalls import Syscalls
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError
from tests.checkpoints.conformance import StoreConformance
from tests.checkpoints.faults import Crash, Crashing, Failing


class TestLocalStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path / "new" / "store")


class WithoutLinks(Syscalls):
    """A file system that has no hard links."""

    @staticmethod
    def link(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")


class TestLocalStoreWithoutLinks(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return LocalStore(tmp_path, WithoutLinks())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store beside a file and a directory that are none of its business."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    store = LocalStore(tmp_path / "store")
    store.write_new("data/one", [b"one"])
    return tmp_path / "store"


def test_a_link_inside_is_not_followed(root: Path) -> None:
    (root / "data" / "linked").symlink_to(root.parent / "outside" / "secret")
    (root / "other").symlink_to(root.parent / "outside")
    store = LocalStore(root)
    for path in ("data/linked", "other/secret"):
        with pytest.raises(CheckpointDamaged, match="cannot be read"):
            store.read(path)
    with pytest.raises(CheckpointError, match="cannot be written"):
        store.write_new("other/new", [b"x"])
    with pytest.raises(CheckpointConflict, match="exists already"):
        store.write_new("data/linked", [b"x"])
    assert store.paths() == ["data/one"]
    (root.parent / "outside" / ".tmp-1").touch()
    store.clean()
    assert sorted(os.listdir(root.parent / "outside")) == [".tmp-1", "secret"]
    assert (root.parent / "outside" / "secret").read_bytes() == b"secret"


def test_the_root_may_be_a_link(root: Path) -> None:
    """Scratch space often is."""
    (root.parent / "scratch").symlink_to(root)
    store = LocalStore(root.parent / "scratch")
    store.write_new("data/two", [b"two"])
    assert store.paths() == ["data/one", "data/two"]


def test_what_is_no_file_is_damage_and_blocks_nobody(root: Path) -> None:
    os.mkfifo(root / "data" / "pipe")
    (root / "data" / "directory").mkdir()
    store = LocalStore(root)
    for path in ("data/pipe", "data/directory"):
        with pytest.raises(CheckpointDamaged, match=r"no regular file|Is a directory"):
            store.read(path)
    assert store.paths() == ["data/one"]


def test_temporary_files_of_the_dead_are_cleaned_away(root: Path) -> None:
    (root / "data" / ".tmp-77-abc").write_bytes(b"half")
    (root / ".hidden").write_bytes(b"somebody's")
    LocalStore(root).clean()
    assert sorted(os.listdir(root / "data")) == ["one"]
    assert (root / ".hidden").exists()


def test_directories_that_have_become_empty_go(root: Path) -> None:
    store = LocalStore(root)
    store.write_new("segments/1/fields/a", [b"x"])
    store.write_new("segments/2/fields/a", [b"x"])
    store.delete("segments/1/fields/a")
    assert sorted(os.listdir(root / "segments")) == ["2"]


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("calls", [Syscalls, WithoutLinks])
def test_an_error_of_any_call_leaves_nothing_and_is_named(
    tmp_path: Path, error: int, calls: type[Syscalls]
) -> None:
    """The k-th call fails, for every k: no file, no temporary file, and the next attempt works."""
    failures = 0
    for k in range(100):
        root = tmp_path / str(k)
        failing = Failing(k, error, calls())
        store = LocalStore(root, failing)
        try:
            store.write_new("data/one", [b"first block", b"second"])
        except CheckpointError as raised:
            failures += 1
            failure = str(raised)
        else:
            if failing.calls <= k:
                break
            failure = ""
            assert store.read("data/one") == b"first blocksecond"
        if failure:
            assert f"data/one cannot be written: {os.strerror(error)}" in failure
            assert store.paths() == []
            assert [name for _, _, names in os.walk(root) for name in names] == []
            store.write_new("data/one", [b"again"])
            assert store.read("data/one") == b"again"
    assert failures >= 8


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    class Short(Syscalls):
        @staticmethod
        def write(fd: int, data: memoryview) -> int:
            return os.write(fd, data[:3])

    store = LocalStore(tmp_path, Short())
    store.write_new("one", [b"0123456789", b"ab"])
    assert store.read("one") == b"0123456789ab"


@pytest.mark.parametrize("calls", [Syscalls, WithoutLinks])
def test_a_crash_before_any_call_leaves_all_or_nothing(tmp_path: Path, calls: type[Syscalls]) -> None:
    """Also where what was not synced is lost: an acknowledged file is whole."""
    outcomes = []
    for k in range(100):
        root = tmp_path / str(k)
        crashing = Crashing(k, calls())
        try:
            LocalStore(root, crashing).write_new("data/one", [b"content"])
            acknowledged = True
        except Crash:
            acknowledged = False
        crashing.lose_power()
        after = LocalStore(root)
        there = after.paths() == ["data/one"] and after.read("data/one") == b"content"
        assert there or not acknowledged
        if not there and "data/one" in after.paths():  # the reserved name of a store without links
            assert calls is WithoutLinks
            assert after.read("data/one") == b""
        after.clean()
        assert not [name for _, _, names in os.walk(root) for name in names if name.startswith(".tmp")]
        outcomes.append((acknowledged, there))
        if not crashing.crashed:
            break
    assert outcomes[0] == (False, False)
    assert outcomes[-1] == (True, True)
    assert len(outcomes) > 8


def test_what_may_not_be_read_is_no_damage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older generation would be no way out of missing rights, or of too many open files."""
    real = os.open

    def refusing(path: object, *args: object, **kwargs: object) -> int:
        if path == "one":
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(CheckpointError, match=r"data/one cannot be read: Permission denied") as caught:
        LocalStore(root).read("data/one")
    assert not isinstance(caught.value, CheckpointDamaged)

"""Processes that are killed, disks that are full or broken: the last complete replay is there, and whole."""

from __future__ import annotations

import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from seedflow.checkpoints import Generations, LocalStore, Manifest
from seedflow.checkpoints.manifest import manifest_path
from seedflow.errors import CheckpointError
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.save import ReplaySaver
from tests.checkpoints.faults import Crash, Crashing, Failing
from tests.replay.disk.ring import Ring, check_equal, load, save, tiny_ring

ROOT = Path(__file__).parents[3]


def run_killed(root: Path, rounds: int, seed: int, form: Form) -> list[int]:
    command = [sys.executable, "-m", "tests.replay.disk.killed", str(root), str(rounds), str(seed), form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(number) for number in re.findall(r"\d+", done.stdout)]


def test_no_acknowledged_replay_is_lost_to_a_kill(tmp_path: Path) -> None:
    kills, _, _ = run_killed(tmp_path / "replay", 20, 1, "zip")
    assert kills == 20


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["zip", "directory"])
def test_no_acknowledged_replay_is_lost_to_many_kills(tmp_path: Path, form: Form) -> None:
    kills, busy, saves = run_killed(tmp_path / "replay", 200, 2, form)
    assert kills == 200
    assert busy > 20, "kills fell into saves"
    assert saves > 20


def saves_until_a_crash(
    root: Path, k: int, form: Form, syncs: bool = True
) -> tuple[Crashing, int, list[Ring]]:
    """Save three times; crash before the k-th call after the first. Returns each generation's ring, too."""
    rings = [tiny_ring().arrive(count) for count in (7, 12, 17)]
    generations, saver = Generations(LocalStore(root), keep=2), ReplaySaver(form)
    crashing = Crashing(k, syncs=syncs)
    if syncs:
        save(generations, rings[0].snapshot(), saver)
    generations.store._calls = crashing  # type: ignore[attr-defined]
    acknowledged = len(generations.numbers())
    try:
        for ring in rings[acknowledged:]:
            acknowledged = save(generations, ring.snapshot(), saver)
    except Crash:
        pass
    return crashing, acknowledged, rings


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "names_too"),
    [
        pytest.param("zip", None, id="all is kept", marks=pytest.mark.slow),
        pytest.param("zip", False, id="files are emptied", marks=pytest.mark.slow),
        pytest.param("zip", True, id="files are emptied and unnamed"),
        pytest.param("directory", None, id="directory, all is kept", marks=pytest.mark.slow),
        pytest.param("directory", False, id="directory, files are emptied", marks=pytest.mark.slow),
        pytest.param(
            "directory", True, id="directory, files are emptied and unnamed", marks=pytest.mark.slow
        ),
    ],
)
def test_a_crash_before_any_call_leaves_the_old_or_the_new_replay(
    tmp_path: Path, form: Form, names_too: bool | None
) -> None:
    """Also where what was not synced is lost with the power; the next save cleans up."""
    found = []
    for k in range(1000):
        root = tmp_path / str(k)
        crashing, acknowledged, rings = saves_until_a_crash(root, k, form)
        if names_too is not None:
            crashing.lose_power(names_too)
        store = LocalStore(root)
        generations = Generations(store, keep=2)
        restored = generations.restore(lambda manifest, store=store: load_replay(store, manifest))  # type: ignore[misc]
        generation = restored.manifest.generation
        assert acknowledged <= generation <= acknowledged + 1
        assert not restored.skipped
        check_equal(restored.value.snapshot, rings[generation - 1].snapshot())
        generations.go_on_from(restored.manifest)
        for _ in range(2):
            save(generations, tiny_ring().arrive(20).snapshot(), ReplaySaver(form))
        named = {f.path for n in generations.numbers() for f in Manifest.read(store, n).files}
        there = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
        assert there == named | {manifest_path(n) for n in generations.numbers()}, "nothing else is left"
        found.append(generation)
        if not crashing.crashed:
            break
    assert found == sorted(found)
    assert set(found) == {1, 2, 3}
    assert len(found) > 40


@pytest.mark.parametrize("form", ["zip", "directory"])
def test_without_fsync_the_same_loses_every_replay(tmp_path: Path, form: Form) -> None:
    """The rehearsal above can fail: here it does."""
    crashing, acknowledged, _ = saves_until_a_crash(tmp_path, 10**9, form, syncs=False)
    assert acknowledged == 3
    crashing.lose_power(names_too=False)
    assert len(Generations(LocalStore(tmp_path)).numbers()) == 2, "the manifests are there, and empty"
    with pytest.raises(CheckpointError, match=r"no generation in .* is whole"):
        load(LocalStore(tmp_path))


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_an_error_of_any_call_fails_the_save_by_name_and_the_next_one_works(
    tmp_path: Path, error: int
) -> None:
    failures = 0
    for k in range(200):
        root = tmp_path / str(k)
        store, ring, saver = LocalStore(root), tiny_ring(), ReplaySaver()
        generations = Generations(store, keep=2)
        save(generations, ring.arrive(7).snapshot(), saver)
        before = ring.snapshot()
        names = {path.name for path in root.rglob("*")}
        failing = Failing(k, error, only=("open", "write", "fsync", "link"))
        store._calls = failing  # type: ignore[assignment]
        message = None
        try:
            save(generations, ring.arrive(5).snapshot(), saver)
        except CheckpointError as raised:
            message = str(raised)
        if message is None:
            assert failing.calls <= k
            break
        failures += 1
        assert f"cannot be written: {os.strerror(error)}" in message
        check_equal(load(LocalStore(root)).snapshot, before)
        assert {path.name for path in root.rglob("*")} == names, "nothing of it is left"
        save(generations, ring.arrive(5).snapshot(), saver)
        check_equal(load(LocalStore(root)).snapshot, ring.snapshot())
    assert failures > 12


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Files cannot grow beyond a size, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def filled(directory: Path) -> Iterator[None]:
    """There is no room for another byte."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"\1" * 4096):
            pass
    try:
        yield
    finally:
        filler.unlink()


def check_full_disk(root: Path, full: AbstractContextManager[None]) -> None:
    """A save that finds no room, and then one that does."""
    store, ring, saver = LocalStore(root), Ring(capacity=100).arrive(60), ReplaySaver()
    generations = Generations(store)
    save(generations, ring.snapshot(), saver)
    before = ring.snapshot()
    names = {path.name for path in root.rglob("*")}
    reason = r"cannot be written: (File too large|No space left on device)"
    with full, pytest.raises(CheckpointError, match=reason):
        save(generations, ring.arrive(200).snapshot(), saver)
    assert {path.name for path in root.rglob("*")} == names, "nothing of it is left"
    check_equal(load(LocalStore(root)).snapshot, before)
    save(generations, ring.arrive(10).snapshot(), saver)
    check_equal(load(LocalStore(root)).snapshot, ring.snapshot())


def test_a_full_disk_fails_the_save_by_name_and_costs_nothing_else(tmp_path: Path) -> None:
    check_full_disk(tmp_path / "replay", largest_file(40_000))


@pytest.mark.hosts
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root and loop devices")
def test_a_full_file_system_fails_the_save_by_name_and_costs_nothing_else(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", mounted], check=True)
    try:
        check_full_disk(mounted / "replay", filled(mounted))
    finally:
        subprocess.run(["umount", mounted], check=True)

"""Checkpoints: committed as a whole, checked on load, never trusted."""

import json
from pathlib import Path

import pytest
import torch

from seedflow.checkpoints import Generations, LocalStore, Manifest
from seedflow.checkpoints.manifest import seal
from seedflow.checkpoints.syscalls import Syscalls
from seedflow.errors import CheckpointConflict, CheckpointError
from seedflow.learner.checkpoint import TENSORS as PART
from seedflow.learner.checkpoint import CheckpointStore, read_tensors, tensors_part
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.part import REPLAY
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.snapshot import Snapshot
from tests.replay.disk.ring import Ring, check_equal

TENSORS = {"weights/a": torch.arange(6.0).view(2, 3), "learning/step": torch.tensor(7)}


def store_with(tmp_path: Path, generations: int) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    for n in range(generations):
        store.save({"weights/a": torch.full((2,), float(n))}, {"n": n})
    return store


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.save(TENSORS, {"steps": 12}) == 1
    loaded = store.load()
    assert loaded.generation == 1
    assert loaded.state == {"steps": 12}
    assert torch.equal(loaded.section("weights")["a"], TENSORS["weights/a"])
    assert loaded.section("learning")["step"].item() == 7


def test_the_newest_generations_are_kept(tmp_path: Path) -> None:
    store = store_with(tmp_path, 5)
    assert store.generations() == [3, 4, 5]
    assert store.load().state == {"n": 4}
    assert store.load(3).state == {"n": 2}
    assert len(list((tmp_path / "checkpoints" / "tensors").iterdir())) == 3


@pytest.mark.parametrize("crash_at", range(14))
def test_a_crash_while_saving_leaves_the_last_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """Each system call that a save makes is the last one of a process, in turn."""
    store = store_with(tmp_path, 3)
    calls = 0

    def crashing(real):  # type: ignore[no-untyped-def]
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls > crash_at:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "link", "unlink"):
            patch.setattr(Syscalls, name, staticmethod(crashing(getattr(Syscalls, name))))
        try:
            store.save({"weights/a": torch.full((2,), 9.0)}, {"n": 9})
        except KeyboardInterrupt:
            crashed = True
        else:
            crashed = False
    assert crashed == (crash_at < 12), "a save makes 12 such calls"
    after = CheckpointStore(tmp_path / "checkpoints")
    loaded = after.load()
    assert loaded.state["n"] in (2, 9)
    assert loaded.tensors["weights/a"][0].item() == loaded.state["n"]
    assert after.save({"weights/a": torch.zeros(2)}, {"n": 10}) == loaded.generation + 1


def test_a_flipped_bit_is_found_and_the_message_names_the_way_back(tmp_path: Path) -> None:
    store = store_with(tmp_path, 2)
    (file,) = (tmp_path / "checkpoints" / "tensors").glob("00000002-*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged.*go back to generation 1"):
        store.load()
    file.write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=r"bytes instead of"):
        store.load()
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.load()


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    store = store_with(tmp_path, 1)
    path = tmp_path / "checkpoints" / "manifests" / "00000001.json"
    document = json.loads(path.read_text()) | {"version": 99}
    del document["crc32c"]
    path.write_bytes(seal(json.dumps(document, indent=1).encode()))
    with pytest.raises(CheckpointError, match=r"format version 99.*upgrade seedflow"):
        store.load()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"version": 1}', b'{"version": 1, "tensors": 3}'])
def test_a_manifest_that_is_none_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    store = store_with(tmp_path, 1)
    (tmp_path / "checkpoints" / "manifests" / "00000001.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.load()


def test_nothing_to_load_says_where(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no checkpoint"):
        CheckpointStore(tmp_path).load()
    with pytest.raises(CheckpointError, match=r"no generation 7; it has \[1, 2\]"):
        store_with(tmp_path, 2).load(7)


def test_a_run_that_goes_on_falls_back_and_says_so(tmp_path: Path) -> None:
    store = store_with(tmp_path, 3)
    (file,) = (tmp_path / "checkpoints" / "tensors").glob("00000003-*.safetensors")
    file.write_bytes(b"")
    resumed = CheckpointStore(tmp_path / "checkpoints").restore()
    assert resumed.state == {"n": 1}
    (reason,) = resumed.skipped
    assert reason.startswith("generation 3: ")
    assert "0 bytes instead of" in reason
    assert store.generations() == [1, 2, 3]


def test_one_run_at_a_time_writes(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path / "checkpoints") for _ in range(2))
    assert first.lock() is None
    with pytest.raises(CheckpointConflict, match="end that run first"):
        second.lock()
    first.unlock()
    assert second.lock() is None
    second.unlock()


def test_tensors_and_a_replay_are_one_generation(tmp_path: Path) -> None:
    """Where either is damaged, both are those of the generation before."""
    store = LocalStore(tmp_path)
    generations, saver, ring = Generations(store), ReplaySaver(), Ring()
    snapshots = []
    for number in (1.0, 2.0, 3.0):
        snapshots.append(ring.arrive(40).snapshot())
        with generations.draft() as draft:
            draft.add(PART, tensors_part(draft, {"weights/a": torch.full((2,), number)}))
            draft.add(REPLAY, saver.write(draft, snapshots[-1]))
            draft.commit({})

    def read(manifest: Manifest) -> tuple[float, Snapshot]:
        tensors = read_tensors(store, manifest)
        return tensors["weights/a"][0].item(), load_replay(store, manifest).snapshot

    for directory, expected in (("tensors", 3), ("sequences", 2), (None, 1)):
        number, snapshot = Generations(store).restore(read).value
        assert number == expected
        check_equal(snapshot, snapshots[expected - 1])
        if directory is not None:
            (file,) = [file for file in store.paths(directory) if f"{expected:08d}" in file]
            store.delete(file)

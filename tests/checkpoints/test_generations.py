"""Generations: all or nothing, whatever happens, and always one to go back to."""

from __future__ import annotations

import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from seedflow.checkpoints import Draft, Generations, LocalStore, Manifest, Part, Store
from seedflow.checkpoints.generations import blocks
from seedflow.checkpoints.manifest import manifest_path
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError
from tests.checkpoints.faults import Crash, Crashing, Failing


@pytest.fixture(params=["local", "memory", "local through fsspec"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    if request.param == "memory":
        return FsspecStore(f"memory://{uuid.uuid4().hex}")
    return FsspecStore(f"file://{tmp_path}/store")


def save(generations: Generations, number: int, share: bool = False) -> int:
    """Commit a generation of two files, the second one of the base's if `share`."""
    with generations.draft() as draft:
        own = draft.write(draft.unique_path("own", "x", ".bin"), [b"%d" % number])
        shared = draft.base.parts["both"].files[1] if share and draft.base else None
        if shared is None:
            shared = draft.write(draft.unique_path("shared", "x", ".bin"), [b"common"] * 3)
        draft.add("both", Part((own, shared), {"n": number}))
        return draft.commit({"number": number})


def draft_file(draft: Draft) -> list[bytes]:
    """Write a file; a piece for another one."""
    draft.write(draft.unique_path("own", "x", ".bin"), [b"some"])
    return [b"some"]


def read(store: Store) -> Callable[[Manifest], int]:
    """Read a generation that `save` made; returns its number."""

    def check(manifest: Manifest) -> int:
        own, shared = manifest.parts["both"].files
        assert shared.read(store) == b"common" * 3
        number = int(own.read(store))
        assert manifest.state == {"number": number}
        assert manifest.parts["both"].state == {"n": number}
        return number

    return check


def newest(store: Store) -> int:
    return Generations(store).restore(read(store)).value


def test_generations_are_numbered_from_1_and_read_back(store: Store) -> None:
    generations = Generations(store)
    assert generations.numbers() == []
    assert [save(generations, n) for n in (10, 20)] == [1, 2]
    assert generations.numbers() == [1, 2]
    restored = generations.restore(read(store))
    assert (restored.value, restored.manifest.generation, restored.skipped) == (20, 2, ())
    assert generations.restore(read(store), generation=1).value == 10


def test_nothing_to_restore_says_where(store: Store) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        newest(store)
    save(Generations(store), 1)
    with pytest.raises(CheckpointError, match=r"no generation 7; it has \[1\]"):
        Generations(store).restore(read(store), generation=7)


def test_old_generations_go_with_files_that_no_kept_one_names(store: Store) -> None:
    generations = Generations(store, keep=2)
    save(generations, 0)
    for n in range(1, 5):
        save(generations, n, share=True)
    assert generations.numbers() == [4, 5]
    assert len(store.paths("own")) == 2
    assert len(store.paths("shared")) == 1, "all share the first one's"
    assert [generations.restore(read(store), n).value for n in (4, 5)] == [3, 4]


def test_two_are_kept_at_least(store: Store) -> None:
    generations = Generations(store, keep=1)
    for n in range(4):
        save(generations, n)
    assert generations.numbers() == [3, 4]


def test_files_that_are_nobodys_are_left_alone(store: Store) -> None:
    store.write_new("notes/readme.txt", [b"mine"])
    store.write_new("own/mine", [b"mine"])
    store.write_new(f"own/orphan-{uuid.uuid4().hex}.bin", [b"of a writer that died"])
    save(Generations(store), 1)
    assert [path for path in store.paths() if "orphan" in path] == []
    assert store.read("notes/readme.txt") == store.read("own/mine") == b"mine"


def test_a_draft_that_is_given_up_leaves_nothing(store: Store) -> None:
    generations = Generations(store)
    save(generations, 1)
    before = store.paths()

    def pieces() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError

    with pytest.raises(RuntimeError), generations.draft() as draft:
        draft.write(draft.unique_path("own", "x", ".bin"), chain(draft_file(draft), pieces()))
    with generations.draft() as draft:
        draft.write(draft.unique_path("own", "x", ".bin"), [b"some"])
    assert store.paths() == before
    assert newest(store) == 1


def test_a_damaged_generation_is_skipped_and_reported(store: Store) -> None:
    generations = Generations(store)
    for n in (1, 2, 3):
        save(generations, n)
    (third,) = [file for file in Manifest.read(store, 3).files if file.path.startswith("own")]
    store.delete(third.path)
    store.delete(manifest_path(2))
    store.write_new(manifest_path(2), [b"{}"])
    restored = Generations(store).restore(read(store))
    assert restored.value == 1
    assert restored.manifest.generation == 1
    assert [text.partition(":")[0] for text in restored.skipped] == ["generation 3", "generation 2"]
    assert "is missing" in restored.skipped[0]
    assert "cannot be read" in restored.skipped[1]
    with pytest.raises(CheckpointDamaged, match=r"go back to generation 2 by removing .*00000003\.json"):
        Generations(store).restore(read(store), fall_back=False)
    with pytest.raises(CheckpointDamaged, match=r"go back to generation 1 by removing .*00000002\.json"):
        Generations(store).restore(read(store), generation=2)


def test_when_all_are_damaged_each_is_named(store: Store) -> None:
    generations = Generations(store)
    for n in (1, 2):
        save(generations, n)
    for path in store.paths("shared"):
        store.delete(path)
    with pytest.raises(CheckpointDamaged, match=r"no generation .* is whole: generation 2: .*generation 1: "):
        newest(store)


def test_damage_does_not_count_as_a_generation_to_go_back_to(store: Store) -> None:
    """Else the last whole generation would be removed while damaged ones are kept."""
    generations = Generations(store, keep=2)
    for n in (1, 2, 3):
        save(generations, n)
    (third,) = [file for file in Manifest.read(store, 3).files if file.path.startswith("own")]
    store.delete(third.path)
    resumed = Generations(store, keep=2)
    restored = resumed.restore(read(store))
    resumed.go_on_from(restored.manifest)
    assert restored.value == 2
    assert save(resumed, 4) == 4
    store.delete(Manifest.read(store, 4).files[0].path)
    assert newest(store) == 2


def test_a_writer_goes_on_from_what_it_restored_not_from_what_is_newest(store: Store) -> None:
    generations = Generations(store)
    for n in (1, 2):
        save(generations, n)
    first, second = (Manifest.read(store, n) for n in (1, 2))
    store.delete(second.files[0].path)
    resumed = Generations(store)
    resumed.go_on_from(resumed.restore(read(store)).manifest)
    assert resumed.base == first
    assert save(resumed, 3, share=True) == 3
    assert Manifest.read(store, 3).files[1] == first.files[1]
    fresh = Generations(store)
    save(fresh, 4, share=True)
    assert Manifest.read(store, 4).files[1] != first.files[1], "nothing was restored"


def test_a_second_writer_is_found_out_and_nothing_is_deleted(store: Store) -> None:
    """Where no lock kept it out."""
    first, second = Generations(store, keep=2), Generations(store, keep=2)
    for n in (1, 2, 3):
        save(first, n)
    save(second, 4)
    before = {path: store.read(path) for path in store.paths()}
    for _ in range(2):
        with pytest.raises(CheckpointConflict, match=r"has committed generation 4.*this one knows 3"):
            save(first, 5)
    assert {path: store.read(path) for path in store.paths()} == before
    assert newest(store) == 4


def test_two_that_commit_at_once_cannot_both(store: Store) -> None:
    first, second = Generations(store), Generations(store)
    save(first, 1)
    with first.draft() as mine:
        own = mine.write(mine.unique_path("own", "x", ".bin"), [b"2"])
        shared = mine.write(mine.unique_path("shared", "x", ".bin"), [b"common"] * 3)
        mine.add("both", Part((own, shared), {"n": 2}))
        with second.draft() as other:
            other.add("both", mine._parts["both"])
            assert other.commit({"number": 2}) == 2
        with pytest.raises(CheckpointConflict, match="another process has committed generation 2"):
            mine.commit({"number": 2})
    assert newest(store) == 2


def test_a_newer_release_is_not_written_over(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    save(Generations(store), 1)
    data = store.read(manifest_path(1))
    from tests.checkpoints.test_manifest import altered

    store.write_new(manifest_path(7), [altered(version=3)])
    with pytest.raises(CheckpointError, match="format version 3"):
        save(Generations(store), 8)
    with pytest.raises(CheckpointError, match="format version 3"):
        newest(store)
    assert store.read(manifest_path(1)) == data


@pytest.mark.parametrize("names_too", [False, True])
def test_a_crash_before_any_call_leaves_the_old_or_the_new_generation(
    tmp_path: Path, names_too: bool
) -> None:
    """Also where what was not synced is lost; and the next save cleans up."""
    outcomes = []
    for k in range(300):
        root = tmp_path / str(k)
        save(Generations(LocalStore(root), keep=2), 1)
        generations = Generations(LocalStore(root), keep=2)
        generations.go_on_from(generations.restore(read(LocalStore(root))).manifest)
        crashing = Crashing(k)
        generations.store._calls = crashing  # type: ignore[attr-defined]
        acknowledged = 1
        try:
            for number in (2, 3):
                save(generations, number, share=number == 2)
                acknowledged = number
        except Crash:
            pass
        crashing.lose_power(names_too)
        found = newest(LocalStore(root))
        assert found in (acknowledged, acknowledged + 1)
        outcomes.append(found)
        check_next_save_cleans_up(root)
        if not crashing.crashed:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2, 3}
    assert len(outcomes) > 40


def check_next_save_cleans_up(root: Path) -> None:
    store = LocalStore(root)
    resumed = Generations(store, keep=2)
    restored = resumed.restore(read(store))
    resumed.go_on_from(restored.manifest)
    for number in (50, 51):
        save(resumed, number)
    named = {f.path for n in resumed.numbers() for f in Manifest.read(store, n).files}
    there = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    assert there == named | {manifest_path(n) for n in resumed.numbers()}
    assert len(resumed.numbers()) == 2


def test_without_fsync_the_same_loses_everything(tmp_path: Path) -> None:
    """The rehearsal above can fail: here it does."""
    lost = 0
    for k in (30, 60, 1000):
        root = tmp_path / str(k)
        crashing = Crashing(k, syncs=False)
        try:
            generations = Generations(LocalStore(root, crashing))
            for number in (1, 2, 3):
                save(generations, number)
        except Crash:
            pass
        crashing.lose_power(names_too=False)
        with pytest.raises(CheckpointError):
            newest(LocalStore(root))
        lost += bool(list((root / "manifests").glob("*.json")))
    assert lost == 3, "the manifests were there, and empty"


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_save_that_fails_is_named_and_the_next_one_works(tmp_path: Path, error: int) -> None:
    """The k-th write, fsync or link fails, for every k."""
    failures = 0
    for k in range(100):
        root = tmp_path / str(k)
        store = LocalStore(root)
        generations = Generations(store, keep=2)
        save(generations, 1)
        before = {path.name for path in root.rglob("*")}
        failing = Failing(k, error, only=("open", "write", "fsync", "link"))
        store._calls = failing
        try:
            save(generations, 2)
        except CheckpointError as raised:
            failure = str(raised)
        else:
            assert failing.calls <= k
            break
        failures += 1
        assert os.strerror(error) in failure
        assert str(root) in failure
        assert newest(LocalStore(root)) == 1
        assert {path.name for path in root.rglob("*")} == before, "nothing of it is left"
        save(generations, 3)
        assert newest(LocalStore(root)) == 3
    assert failures > 10


def test_old_files_that_cannot_be_removed_fail_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = LocalStore(tmp_path)
    generations = Generations(store, keep=2)
    for n in (1, 2):
        save(generations, n)
    store._calls = Failing(3, errno.EROFS, only=("unlink",))
    assert save(generations, 3) == 3
    assert "generation 3 is saved, but old files remain" in caplog.text
    assert newest(store) == 3
    store._calls = Failing(10**9, 0)
    save(generations, 4)
    assert generations.numbers() == [3, 4]


def test_drafts_wait_for_each_other(tmp_path: Path) -> None:
    """The last save of a run may begin while one in the background is being written."""
    generations = Generations(LocalStore(tmp_path))
    begun, done = threading.Event(), threading.Event()
    order: list[int] = []

    def pieces() -> Iterator[bytes]:
        begun.set()
        assert done.wait(60)
        yield b"1"

    def slowly() -> None:
        with generations.draft() as draft:
            own = draft.write(draft.unique_path("own", "x", ".bin"), pieces())
            shared = draft.write(draft.unique_path("shared", "x", ".bin"), [b"common"] * 3)
            draft.add("both", Part((own, shared), {"n": 1}))
            order.append(draft.commit({"number": 1}))

    background = threading.Thread(target=slowly)
    background.start()
    assert begun.wait(60)
    last = threading.Thread(target=lambda: order.append(save(generations, 2)))
    last.start()
    done.set()
    background.join()
    last.join()
    assert order == [1, 2]
    assert newest(generations.store) == 2


def test_pieces_are_joined_into_blocks() -> None:
    assert list(blocks([b"ab", b"", b"c", b"defgh", b"i"], 4)) == [b"abcdefgh", b"i"]
    assert list(blocks([], 4)) == []
    large = b"x" * 10
    assert next(iter(blocks([large], 4))) is large, "not copied"

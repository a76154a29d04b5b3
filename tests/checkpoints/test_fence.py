"""A later start of a run's learner takes over; the earlier one, should it live on, writes nothing more."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from seedflow.checkpoints import Fence, Generations, LocalStore, Store, Writer, WriterLock
from seedflow.checkpoints import fence as fence_module
from seedflow.checkpoints.fence import GUARD, RECORD
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointConflict, CheckpointFenced

HOLDER = """
import sys
from seedflow.checkpoints import Generations, LocalStore, Writer, WriterLock
lock = WriterLock(LocalStore(sys.argv[1]), Writer.this(run="r", generation=0))
lock.acquire()
generations = Generations(LocalStore(sys.argv[1]), fence=lock.fence)
for line in sys.stdin:
    try:
        with generations.draft() as draft:
            print("committed", draft.commit({}), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture(params=["flock", "no flock", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with locks, one on a file system without, and one without files."""
    if request.param == "memory":
        return FsspecStore(f"memory://{uuid.uuid4().hex}")
    if request.param == "no flock":

        def unsupported(fd: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", unsupported)
    return LocalStore(tmp_path)


def lock_of(store: Store, generation: int, run: str = "r") -> WriterLock:
    return WriterLock(store, Writer.this(run=run, generation=generation), yield_seconds=0.1)


def commit(store: Store, lock: WriterLock) -> int:
    with Generations(store, fence=lock.fence).draft() as draft:
        return draft.commit({})


def test_the_later_start_takes_over_and_the_earlier_one_is_fenced_off(store: Store) -> None:
    first, second = lock_of(store, 0), lock_of(store, 1)
    first.acquire()
    assert commit(store, first) == 1
    second.acquire()
    assert second.succeeds is not None
    with pytest.raises(CheckpointFenced, match="generation 1 of this run's learner has taken over"):
        commit(store, first)
    with pytest.raises(CheckpointFenced), first.fence.writing():
        raise AssertionError("nothing may be written")
    assert commit(store, second) == 2
    first.release()  # which must not touch what is the other's now
    assert commit(store, second) == 3
    second.release()


def test_a_start_that_comes_late_finds_that_it_was_overtaken(store: Store) -> None:
    with lock_of(store, 3), pytest.raises(CheckpointFenced, match=r"generation 3 .* has taken over"):
        lock_of(store, 2).acquire()
    with pytest.raises(CheckpointFenced):  # also when nobody writes any more
        lock_of(store, 2).acquire()
    with lock_of(store, 4) as lock:
        assert lock.succeeds is None


def test_a_task_that_dask_runs_again_does_not_begin_the_run_anew(store: Store) -> None:
    with lock_of(store, 0):
        pass
    with pytest.raises(CheckpointFenced, match="generation 0 of this run's learner was started before"):
        lock_of(store, 0).acquire()


def test_another_run_is_refused_and_not_fenced(store: Store) -> None:
    refused = pytest.raises(CheckpointConflict, match=r"end that run first|may still write")
    with lock_of(store, 0), refused:
        lock_of(store, 5, run="another").acquire()
    with lock_of(store, 0, run="another") as lock:
        assert lock.succeeds is None


def test_a_process_that_was_stopped_and_goes_on_commits_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stale:
        assert stale.stdin is not None
        assert stale.stdout is not None
        stale.stdin.write("go\n")
        stale.stdin.flush()
        assert stale.stdout.readline() == "committed 1\n"
        stale.send_signal(signal.SIGSTOP)
        store = LocalStore(tmp_path)
        with lock_of(store, 1) as lock:
            assert lock.succeeds is not None
            assert f"process {stale.pid} " in lock.succeeds
            before = sorted(path.name for path in tmp_path.rglob("*"))
            stale.send_signal(signal.SIGCONT)
            stale.stdin.write("go\n")
            stale.stdin.flush()
            assert stale.stdout.readline() == "CheckpointFenced\n"
            assert sorted(path.name for path in tmp_path.rglob("*")) == before
            assert commit(store, lock) == 2
        stale.stdin.close()


def test_nobody_takes_over_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence_module, "GUARD_SECONDS", 0.2)
    store = LocalStore(tmp_path)
    first, second = lock_of(store, 0), lock_of(store, 1)
    first.acquire()
    with first.fence.writing():
        with pytest.raises(CheckpointConflict, match=f"{GUARD} for 0.2 s: it was stopped in the middle"):
            second.acquire()
        assert Writer.parse(store.read(RECORD)) == Writer.this(run="r", generation=0)
    second.acquire()
    with pytest.raises(CheckpointFenced):
        first.fence.check()
    first.release()
    second.release()


def test_one_that_lets_go_in_time_loses_nothing(tmp_path: Path) -> None:
    """A learner whose worker leaves saves for the last time while the next one is started."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as leaving:
        assert leaving.stdin is not None
        assert leaving.stdout is not None
        leaving.stdin.write("go\n")
        leaving.stdin.close()  # it commits and ends
        store = LocalStore(tmp_path)
        writer = Writer.this(run="r", generation=1)
        assert leaving.stdout.readline() == "committed 1\n"
        with WriterLock(store, writer, yield_seconds=60.0):
            assert leaving.wait(60) == 0
            assert Generations(store).numbers() == [1]


def test_who_is_in_no_run_is_never_fenced(store: Store) -> None:
    with WriterLock(store):
        fence = Fence(store, Writer.this())
        with fence.writing():
            assert GUARD not in store.paths()
    assert os.getpid() == Writer.this().pid

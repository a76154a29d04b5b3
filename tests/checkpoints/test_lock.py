"""One writer at a time; one that has died is recognised."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from seedflow.checkpoints import LocalStore, Store, Writer, WriterLock
from seedflow.checkpoints.lock import PATH
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointConflict, CheckpointError

HOLDER = """
import sys
from seedflow.checkpoints import LocalStore, WriterLock
WriterLock(LocalStore(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
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


def record(store: Store) -> bytes:
    return store.read(PATH) if PATH in store.paths() else b""


def leave_record(store: Store, writer: Writer) -> None:
    """As a writer does that is killed."""
    store.delete(PATH)
    store.write_new(PATH, [writer.encode()])


def test_the_second_is_refused_and_told_who_holds_it(store: Store) -> None:
    with WriterLock(store):
        before = record(store)
        with pytest.raises(CheckpointConflict, match=rf"process {os.getpid()} on .*end"):
            WriterLock(store).acquire()
        assert record(store) == before
    with WriterLock(store) as lock:
        assert lock.succeeds is None
    assert record(store) == b""


def test_letting_go_twice_or_without_having_it_is_nothing(store: Store) -> None:
    first, second = WriterLock(store), WriterLock(store)
    first.acquire()
    second.release()
    with pytest.raises(CheckpointConflict):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    first.release()
    with pytest.raises(CheckpointConflict):
        first.acquire()
    second.release()


def test_a_dead_process_of_this_host_is_recognised(store: Store) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_record(store, replace(Writer.this(), pid=ended.pid, started=1))
    with WriterLock(store) as lock:
        assert lock.succeeds is not None
        assert lock.succeeds.startswith(f"process {ended.pid} on ")
        assert Writer.parse(record(store)) == Writer.this()


def test_a_number_that_was_given_to_another_process_is_recognised(store: Store) -> None:
    leave_record(store, replace(Writer.this(), started=1))
    with WriterLock(store) as lock:
        assert lock.succeeds is not None


def test_a_process_from_before_the_last_boot_is_recognised(store: Store) -> None:
    leave_record(store, replace(Writer.this(), boot="another"))
    with WriterLock(store) as lock:
        assert lock.succeeds is not None


def test_a_requeued_job_succeeds_itself_on_another_host(store: Store) -> None:
    leave_record(store, replace(Writer.this(), host="elsewhere", job="17", restart=0))
    requeued = Writer.this({"SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": "1"})
    with WriterLock(store, requeued) as lock:
        assert lock.succeeds == f"process {os.getpid()} on elsewhere (job 17)"


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"])
def test_a_refusal_names_the_job_that_writes(store: Store, variable: str) -> None:
    other = WriterLock(store, Writer.this({variable: "18.head"}))
    with (
        WriterLock(store, Writer.this({variable: "17.head"})),
        pytest.raises(CheckpointConflict, match=r"\(job 17.head\)"),
    ):
        other.acquire()


@pytest.mark.parametrize("store", ["no flock", "memory"], indirect=True)
@pytest.mark.parametrize(
    "job",
    [{}, {"SLURM_JOB_ID": "18", "SLURM_RESTART_COUNT": "1"}, {"SLURM_JOB_ID": "17"}, {"PBS_JOBID": "17"}],
)
def test_where_nothing_can_tell_a_person_decides(store: Store, job: dict[str, str]) -> None:
    holder = replace(Writer.this(), host="elsewhere", job="17", restart=0)
    leave_record(store, holder)
    with pytest.raises(
        CheckpointConflict, match=rf"process {os.getpid()} on elsewhere \(job 17\) may still.*remove"
    ):
        WriterLock(store, Writer.this(job)).acquire()
    assert Writer.parse(record(store)) == holder
    store.delete(PATH)
    with WriterLock(store, Writer.this(job)):
        pass


@pytest.mark.parametrize("store", ["no flock", "memory"], indirect=True)
@pytest.mark.parametrize("data", [b"{", b"[]", b'{"host": 1}', b"[" * 5000, b"\xff"])
def test_a_record_that_is_none_names_nobody(store: Store, data: bytes) -> None:
    store.write_new(PATH, [data])
    with pytest.raises(CheckpointConflict, match="another process may still write"):
        WriterLock(store).acquire()


def test_a_killed_process_holds_it_no_longer(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointConflict, match=rf"process {holder.pid} on "):
            WriterLock(LocalStore(tmp_path)).acquire()
        holder.send_signal(signal.SIGKILL)
    with WriterLock(LocalStore(tmp_path)) as lock:
        assert lock.succeeds is not None
        assert f"process {holder.pid} " in lock.succeeds


def test_a_lock_that_is_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    store = LocalStore(tmp_path / "store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / PATH).symlink_to(outside)
    with pytest.raises(CheckpointError, match="symbolic link"):
        WriterLock(store).acquire()
    assert outside.read_bytes() == b"mine"
    (tmp_path / "store" / PATH).unlink()
    os.mkfifo(tmp_path / "store" / PATH)
    with pytest.raises(CheckpointError, match=r"no regular file|cannot be opened"):
        WriterLock(store).acquire()

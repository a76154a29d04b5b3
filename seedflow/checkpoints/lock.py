"""Who may write checkpoints: one process at a time."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import replace

from seedflow.checkpoints.fence import NO_LOCKS, RECORD, Fence, fenced
from seedflow.checkpoints.store import Store
from seedflow.checkpoints.writer import Writer
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError

PATH = RECORD
MAX_BYTES = 4096
YIELD_SECONDS = 5.0
"""How long an earlier learner of the same run, which may be saving for the last time, is waited for."""
POLL_SECONDS = 0.05


class _Outlived(Exception):
    """The holder is an earlier start of the same run's learner."""


class WriterLock:
    """The right to write into a store; a second process that asks for it is refused.

    It is `flock` on ``writer.json`` where the store has files that can be locked: the operating system lets
    go of it when the process ends, however it ends. The file's content says who holds it. Elsewhere the
    content is all there is: then a holder that has died is recognised on its own host and, by its job, after
    a requeue.

    A later generation of a run's learner takes over from an earlier one whether or not that one lives: it is
    given a moment to let go, and is fenced off then (`Fence`).

    Parameters
    ----------
    store
        Where.
    writer
        Who wants to write; the calling process by default.
    yield_seconds
        The moment that an earlier generation has.

    Examples
    --------
    >>> import tempfile
    >>> from seedflow.checkpoints import LocalStore
    >>> store = LocalStore(tempfile.mkdtemp())
    >>> with WriterLock(store):
    ...     try:
    ...         WriterLock(store).acquire()
    ...     except CheckpointConflict as error:
    ...         print("refused")
    refused
    """

    def __init__(
        self, store: Store, writer: Writer | None = None, yield_seconds: float = YIELD_SECONDS
    ) -> None:
        self._store = store
        self._writer = writer or Writer.this()
        self._yield_seconds = yield_seconds
        self.fence = Fence(store, self._writer)
        self._fd: int | None = None
        self._held = False
        self.succeeds: str | None = None
        """Who held the lock and has died without letting go of it, once the lock is held."""

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        CheckpointFenced
            When a later generation of the same run's learner has had it, or this one was started before.
        CheckpointConflict
            When another process holds it, or may hold it.
        """
        patience = time.monotonic() + self._yield_seconds
        while not self._held:
            try:
                self._acquire(take_over=time.monotonic() >= patience)
            except _Outlived:
                time.sleep(POLL_SECONDS)

    def _acquire(self, take_over: bool) -> None:
        fd = self._store.open_lock(PATH)
        if fd is None:
            self._acquire_record(take_over)
        else:
            try:
                fd = self._acquire_file(fd, take_over)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd
        self._held = True

    def release(self) -> None:
        """Let go of the lock; may be called twice, or without having it."""
        if not self._held:
            return
        self._held = False
        # The record of a run's learner stays, so that an earlier one that wakes up late is kept out.
        left = replace(self._writer, released=True).encode() if self._writer.run else b""
        if self._fd is not None:
            if Writer.parse(_content(self._fd)) == self._writer:  # where nothing locks, it may be another's
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, left, 0)
            os.close(self._fd)
            self._fd = None
            return
        with suppress(CheckpointDamaged):
            if Writer.parse(self._store.read(PATH)) != self._writer:
                return  # a later generation's
        self._store.delete(PATH)
        if left:
            self._store.write_new(PATH, [left])

    def __enter__(self) -> WriterLock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _acquire_file(self, fd: int, take_over: bool) -> int:
        """Lock the file; returns the descriptor that holds the lock, another one after a take-over."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            data = _content(fd)
            if not self._outlives(data):
                raise self._refusal(data, certain=True) from None
            if not take_over:
                raise _Outlived from None
            return self._take_over(fd, data)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise CheckpointError(f"{self._store}/{PATH} cannot be locked: {error.strerror}") from error
            self._check_record(_content(fd), take_over)
        else:
            if not self._store.is_open_at(fd, PATH):
                raise _Outlived  # it was replaced meanwhile: look again
            data = _content(fd)
            self._check_not_fenced(data)
            self._succeed(data)
        with self.fence.guarded():
            os.ftruncate(fd, 0)
            os.pwrite(fd, self._writer.encode(), 0)
        return fd

    def _take_over(self, old: int, data: bytes) -> int:
        """Put another file, locked, in the place of one that a process holds which may live on."""

        def prepare(fd: int) -> None:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(fd, self._writer.encode(), 0)

        with self.fence.writing():
            if not self._store.is_open_at(old, PATH):
                raise _Outlived
            new = self._store.replace_lock(PATH, prepare)
        os.close(old)
        self._succeed(data)
        return new

    def _acquire_record(self, take_over: bool) -> None:
        """Where there are no locks: put the record unless there is one."""
        for _ in range(2):
            try:
                self._store.write_new(PATH, [self._writer.encode()])
            except CheckpointConflict:
                try:
                    data = self._store.read(PATH)
                except CheckpointDamaged:
                    continue  # it was just released
                self._check_record(data, take_over)
                self._store.delete(PATH)
            else:
                return
        raise self._refusal(b"", certain=True)

    def _check_record(self, data: bytes, take_over: bool) -> None:
        holder = Writer.parse(data)
        self._check_not_fenced(data)
        if data and (holder is None or not holder.is_gone(self._writer)):
            if not self._outlives(data):
                raise self._refusal(data, certain=False)
            if not take_over:
                raise _Outlived
        self._succeed(data)

    def _outlives(self, data: bytes) -> bool:
        holder = Writer.parse(data)
        return holder is not None and self._writer.fences(holder)

    def _check_not_fenced(self, data: bytes) -> None:
        """Raise where this start of the learner is not the newest, or has been made before."""
        holder = Writer.parse(data)
        if holder is None or not holder.run or holder.run != self._writer.run:
            return
        if holder.generation >= self._writer.generation:
            raise fenced(holder, self._writer, self._store)

    def _succeed(self, data: bytes) -> None:
        holder = Writer.parse(data)
        if data and not (holder is not None and holder.released):
            self.succeeds = str(holder or "an unknown process")

    def _refusal(self, data: bytes, certain: bool) -> CheckpointConflict:
        self._check_not_fenced(data)
        holder = Writer.parse(data)
        who = str(holder) if holder else "another process"
        if certain:
            return CheckpointConflict(
                f"{who} writes checkpoints to {self._store}; end that run first, or use another run directory"
            )
        return CheckpointConflict(
            f"{who} may still write checkpoints to {self._store}, where no lock can tell; "
            f"make sure that it has ended, then remove {self._store}/{PATH}"
        )


def _content(fd: int) -> bytes:
    return os.pread(fd, MAX_BYTES, 0)

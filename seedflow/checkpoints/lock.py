"""Who may write checkpoints: one process at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from seedflow.checkpoints.store import Store
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError

PATH = "writer.json"
MAX_BYTES = 4096

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


@dataclass(frozen=True)
class Writer:
    """A process, told apart from every other one, also from a later one of the same number.

    Attributes
    ----------
    boot
        Which start of the machine; empty where unknown.
    started
        When the process started, in the kernel's ticks since boot.
    job, restart
        The Slurm job, empty without one, and how often it was requeued: it keeps its id, and before it is
        started again it has ended.
    """

    host: str
    boot: str
    pid: int
    started: int
    job: str
    restart: int

    @classmethod
    def this(cls, environ: Mapping[str, str] = os.environ) -> Writer:
        """The calling process."""
        restart = environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
            job=environ.get("SLURM_JOB_ID", ""),
            restart=int(restart) if restart.isdecimal() else 0,
        )

    @classmethod
    def parse(cls, data: bytes) -> Writer | None:
        """Read a record; None where it is not one."""
        try:
            document = json.loads(data)
            values = {field.name: document[field.name] for field in fields(cls)}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        expected = {"host": str, "boot": str, "pid": int, "started": int, "job": str, "restart": int}
        if any(type(values[name]) is not kind for name, kind in expected.items()):
            return None
        return cls(**values)

    def encode(self) -> bytes:
        """The record as it is stored."""
        return json.dumps(asdict(self)).encode()

    def is_gone(self, seen_from: Writer) -> bool:
        """Whether it is certain that the process has ended; another host's cannot be seen."""
        if self.job and self.job == seen_from.job and self.restart < seen_from.restart:
            return True
        if self.host != seen_from.host:
            return False
        return self.boot != seen_from.boot or _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" (job {self.job})" if self.job else "")


class WriterLock:
    """The right to write into a store; a second process that asks for it is refused.

    It is `flock` on ``writer.json`` where the store has files that can be locked: the operating system lets
    go of it when the process ends, however it ends. The file's content says who holds it. Elsewhere the
    content is all there is: then a holder that has died is recognised on its own host and, by its job, after
    a requeue.

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

    def __init__(self, store: Store, writer: Writer | None = None) -> None:
        self._store = store
        self._writer = writer or Writer.this()
        self._fd: int | None = None
        self._held = False
        self.succeeds: str | None = None
        """Who held the lock and has died without letting go of it, once the lock is held."""

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        CheckpointConflict
            When another process holds it, or may hold it.
        """
        fd = self._store.open_lock(PATH)
        if fd is None:
            self._acquire_record()
        else:
            try:
                self._acquire_file(fd)
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
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None
        else:
            self._store.delete(PATH)

    def __enter__(self) -> WriterLock:
        self.acquire()
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _acquire_file(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._refusal(_content(fd), certain=True) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise CheckpointError(f"{self._store}/{PATH} cannot be locked: {error.strerror}") from error
            self._check_record(_content(fd))
        else:
            self._succeed(_content(fd))
        os.ftruncate(fd, 0)
        os.pwrite(fd, self._writer.encode(), 0)

    def _acquire_record(self) -> None:
        """Where there are no locks: put the record unless there is one."""
        for _ in range(2):
            try:
                self._store.write_new(PATH, [self._writer.encode()])
            except CheckpointConflict:
                try:
                    data = self._store.read(PATH)
                except CheckpointDamaged:
                    continue  # it was just released
                self._check_record(data)
                self._store.delete(PATH)
            else:
                return
        raise self._refusal(b"", certain=True)

    def _check_record(self, data: bytes) -> None:
        holder = Writer.parse(data)
        if data and (holder is None or not holder.is_gone(self._writer)):
            raise self._refusal(data, certain=False)
        self._succeed(data)

    def _succeed(self, data: bytes) -> None:
        if data:
            self.succeeds = str(Writer.parse(data) or "an unknown process")

    def _refusal(self, data: bytes, certain: bool) -> CheckpointConflict:
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


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process of this host started; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])

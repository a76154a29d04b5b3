"""A directory as a store."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seedflow.checkpoints.store import MAX_DEPTH, Store, checked_path
from seedflow.checkpoints.syscalls import Syscalls
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError

TEMPORARY = ".tmp-"

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_DAMAGE = {
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a named pipe must not block
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | _OPEN


class LocalStore(Store):
    """A directory, in which whatever was acknowledged survives a crash of the machine.

    A file is written under a temporary name, synced, linked to its name, which fails if that exists, and then
    its directory is synced. Below the root no symbolic link is followed.

    Parameters
    ----------
    root
        The directory; made with the first file.
    calls
        System calls; tests replace them.
    """

    def __init__(self, root: str | os.PathLike[str], calls: Syscalls | None = None) -> None:
        self.root = Path(root)
        self._calls = calls or Syscalls()
        self._synced: set[Path] = set()

    def __str__(self) -> str:
        return str(self.root)

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        with self._reading(path) as fd:
            length = os.fstat(fd).st_size
            wanted = max(0, length - offset) if size is None else size
            if offset + wanted > length:
                raise CheckpointDamaged(
                    f"{self.root / path} has {length} bytes, but {offset + wanted} are wanted"
                )
            pieces, position = [], offset
            while position < offset + wanted:
                piece = os.pread(fd, offset + wanted - position, position)
                if not piece:
                    raise CheckpointDamaged(f"{self.root / path} became shorter while it was read")
                pieces.append(piece)
                position += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def size(self, path: str) -> int:
        with self._reading(path) as fd:
            return os.fstat(fd).st_size

    def write_new(self, path: str, blocks: Iterable[bytes]) -> None:
        try:
            self._make_root()
            with self._directory(path, make=True) as (directory, name):
                self._write(directory, name, blocks)
        except FileExistsError as error:
            raise CheckpointConflict(f"{self.root / path} exists already; nothing was overwritten") from error
        except OSError as error:
            raise CheckpointError(
                f"{self.root / path} cannot be written: {_reason(error)}; "
                "nothing was saved, what was saved before is untouched"
            ) from error

    def paths(self, directory: str = "") -> list[str]:
        found: list[str] = []
        parts = checked_path(directory).split("/") if directory else []
        try:
            with self._descend(parts) as fd:
                self._scan(fd, parts, found)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"{self.root / directory} cannot be listed: {_reason(error)}") from error
        return sorted(found)

    def delete(self, path: str) -> None:
        try:
            with self._directory(path) as (directory, name):
                self._calls.unlink(name, dir_fd=directory)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{self.root / path} cannot be removed: {_reason(error)}") from error
        self._prune(checked_path(path).split("/")[:-1])

    def clean(self) -> None:
        try:
            with self._descend([]) as fd:
                self._clean(fd, 0)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{self.root} cannot be cleaned: {_reason(error)}") from error

    def open_lock(self, path: str) -> int:
        try:
            self._make_root()
            with self._directory(path, make=True) as (directory, name):
                fd = self._calls.open(name, os.O_RDWR | os.O_CREAT | _OPEN, 0o644, dir_fd=directory)
        except OSError as error:
            raise CheckpointError(f"{self.root / path} cannot be opened: {_reason(error)}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise CheckpointError(f"{self.root / path} is no regular file; remove it")
        return fd

    def is_open_at(self, fd: int, path: str) -> bool:
        try:
            return os.path.samestat(
                os.stat(self.root / checked_path(path), follow_symlinks=False), os.fstat(fd)
            )
        except FileNotFoundError:
            return False

    def replace_lock(self, path: str, prepare: Callable[[int], None]) -> int:
        temporary = f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"
        try:
            with self._directory(path) as (directory, name):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
                fd = self._calls.open(temporary, flags, 0o644, dir_fd=directory)
                try:
                    prepare(fd)
                    self._calls.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                except BaseException:
                    os.close(fd)
                    self._calls.unlink(temporary, dir_fd=directory)
                    raise
        except OSError as error:
            raise CheckpointError(f"{self.root / path} cannot be replaced: {_reason(error)}") from error
        return fd

    def _write(self, directory: int, name: str, blocks: Iterable[bytes]) -> None:
        calls, temporary = self._calls, f"{TEMPORARY}{os.getpid()}-{uuid.uuid4().hex}"
        linked = False
        try:
            fd = calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o644, dir_fd=directory)
            try:
                for block in blocks:
                    rest = memoryview(block)
                    while rest:
                        rest = rest[calls.write(fd, rest) :]
                calls.fsync(fd)
            finally:
                os.close(fd)
            linked = self._link(directory, temporary, name)
            calls.fsync(directory)
        except BaseException:
            # After a failed fsync nobody knows what is on the disk: take back what was not acknowledged.
            if linked:
                with suppress(OSError):
                    calls.unlink(name, dir_fd=directory)
            with suppress(OSError):
                calls.unlink(temporary, dir_fd=directory)
            raise
        with suppress(OSError):  # else it is stale and goes with the next cleaning
            calls.unlink(temporary, dir_fd=directory)

    def _link(self, directory: int, temporary: str, name: str) -> bool:
        """Give a file its name unless that is taken."""
        calls = self._calls
        try:
            calls.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return True
        # No hard links here: reserve the name, then replace the empty file. A crash between the two leaves an
        # empty file, which counts as damaged.
        os.close(calls.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o644, dir_fd=directory))
        try:
            calls.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            calls.unlink(name, dir_fd=directory)
            raise
        return True

    @contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        try:
            with self._directory(path) as (directory, name):
                fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=directory)
        except FileNotFoundError as error:
            raise CheckpointDamaged(f"{self.root / path} cannot be read: it is missing") from error
        except OSError as error:
            raise self._unreadable(path, error) from error
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise CheckpointDamaged(f"{self.root / path} is no regular file")
            yield fd
        except OSError as error:
            raise self._unreadable(path, error) from error
        finally:
            os.close(fd)

    def _unreadable(self, path: str, error: OSError) -> CheckpointError:
        kind = CheckpointError if error.errno in _NO_DAMAGE else CheckpointDamaged
        return kind(f"{self.root / path} cannot be read: {_reason(error)}")

    @contextmanager
    def _directory(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """The open directory that holds a path, and the path's last name."""
        *parents, name = checked_path(path).split("/")
        with self._descend(parents, make) as fd:
            yield fd, name

    @contextmanager
    def _descend(self, parts: list[str], make: bool = False) -> Iterator[int]:
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            place = self.root
            for part in parts:
                place = place / part
                if make:
                    self._make(part, fd, place)
                below = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def _make_root(self) -> None:
        place = self.root.absolute()
        missing = [place]
        while not missing[-1].parent.exists():
            missing.append(missing[-1].parent)
        for place in reversed(missing):
            fd = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._make(place.name, fd, place)
            finally:
                os.close(fd)

    def _make(self, name: str, parent: int, place: Path) -> None:
        """Make a directory that is there to stay, also where a process made it that died before syncing."""
        try:
            self._calls.mkdir(name, dir_fd=parent)
            self._synced.discard(place)
        except FileExistsError:
            pass
        if place not in self._synced:
            self._calls.fsync(parent)
            self._synced.add(place)

    def _scan(self, fd: int, parts: list[str], found: list[str]) -> None:
        with os.scandir(fd) as entries:
            for entry in entries:
                try:
                    path = checked_path("/".join([*parts, entry.name]))
                except CheckpointError:
                    continue  # not ours
                if entry.is_file(follow_symlinks=False):
                    found.append(path)
                elif entry.is_dir(follow_symlinks=False) and len(parts) < MAX_DEPTH:
                    below = os.open(entry.name, _DIRECTORY, dir_fd=fd)
                    try:
                        self._scan(below, [*parts, entry.name], found)
                    finally:
                        os.close(below)

    def _clean(self, fd: int, depth: int) -> None:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.name.startswith(TEMPORARY) and entry.is_file(follow_symlinks=False):
                    self._calls.unlink(entry.name, dir_fd=fd)
                elif entry.is_dir(follow_symlinks=False) and depth < MAX_DEPTH:
                    below = os.open(entry.name, _DIRECTORY, dir_fd=fd)
                    try:
                        self._clean(below, depth + 1)
                    finally:
                        os.close(below)

    def _prune(self, parts: list[str]) -> None:
        """Remove directories that have become empty."""
        while len(parts) > 1:
            *parents, name = parts
            try:
                with self._descend(parents) as fd:
                    self._calls.rmdir(name, dir_fd=fd)
            except OSError:
                return  # it is not empty, or gone
            parts = parents


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link, which is not followed inside a checkpoint"
    return error.strerror or repr(error)

"""System calls that fail, and a disk that forgets what was not synced."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from seedflow.checkpoints.syscalls import Syscalls

CHANGING = ("open", "write", "fsync", "link", "rename", "unlink", "mkdir", "rmdir")


class Crash(BaseException):
    """The process is gone: nothing may handle this, and no call that follows has an effect."""


class _Intercepting:
    """Counts calls and lets `_before` interfere."""

    def __init__(self, real: Syscalls | None = None) -> None:
        self._real = real or Syscalls()
        self.calls = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CHANGING:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before(name)
            self.calls += 1
            result = getattr(self._real, name)(*args, **kwargs)
            self._after(name, args, kwargs, result)
            return result

        return call

    def _before(self, name: str) -> None:
        raise NotImplementedError

    def _after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        pass


class Failing(_Intercepting):
    """The k-th call fails with an error of the operating system; all others work."""

    def __init__(
        self, k: int, error: int, real: Syscalls | None = None, only: tuple[str, ...] = CHANGING
    ) -> None:
        super().__init__(real)
        self._k, self._error, self._only = k, error, only

    def _before(self, name: str) -> None:
        if name not in self._only:
            self.calls -= 1  # not counted
        elif self.calls == self._k:
            self.calls += 1
            raise OSError(self._error, os.strerror(self._error))


class Crashing(_Intercepting):
    """Before the k-th call the process is gone. `lose_power` then takes back what was not synced.

    A file's content is on the disk once it was synced; a name in a directory once that was. The disk may have
    kept more than it had to; `lose_power` is the worst that it may do.

    Parameters
    ----------
    k
        Calls that still work.
    syncs
        Whether fsync does anything. Without it nothing is ever safe.
    """

    def __init__(self, k: int, real: Syscalls | None = None, syncs: bool = True) -> None:
        super().__init__(real)
        self._k, self._syncs, self.crashed = k, syncs, False
        self._dirty: dict[tuple[int, int], str] = {}  # inode -> a path: content not synced
        self._names: dict[tuple[int, int], set[str]] = {}  # directory's inode -> paths new in it

    def _before(self, name: str) -> None:
        if self.calls >= self._k:
            self.crashed = True
            raise Crash

    def _after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if name == "open" and args[1] & os.O_CREAT:
            self._dirty[_inode(result)] = os.readlink(f"/proc/self/fd/{result}")
            self._new_name(kwargs.get("dir_fd"), args[0])
        elif name == "write":
            self._dirty[_inode(args[0])] = os.readlink(f"/proc/self/fd/{args[0]}")
        elif name == "fsync" and self._syncs:
            self._dirty.pop(_inode(args[0]), None)
            self._names.pop(_inode(args[0]), None)
        elif name in ("link", "rename"):
            self._new_name(kwargs["dst_dir_fd"], args[1])
        elif name == "mkdir":
            self._new_name(kwargs.get("dir_fd"), args[0])

    def _new_name(self, directory: int | None, name: Any) -> None:
        path = str(name) if directory is None else f"{os.readlink(f'/proc/self/fd/{directory}')}/{name}"
        parent = os.stat(os.path.dirname(path))
        self._names.setdefault((parent.st_dev, parent.st_ino), set()).add(path)

    def lose_power(self, names_too: bool = True) -> None:
        """Empty every file that was not synced; remove every name whose directory was not, if `names_too`."""
        for (device, inode), known in self._dirty.items():
            for path in {known, *(path for paths in self._names.values() for path in paths)}:
                if os.path.isfile(path) and (os.stat(path).st_dev, os.stat(path).st_ino) == (device, inode):
                    os.truncate(path, 0)
        if names_too:
            for path in sorted({path for paths in self._names.values() for path in paths}, reverse=True):
                if os.path.isdir(path):
                    if not os.listdir(path):
                        os.rmdir(path)
                elif os.path.exists(path):
                    os.unlink(path)


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino

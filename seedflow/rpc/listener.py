"""The listening end of the control socket: in a private directory, with a short name, removed at the end."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import tempfile
from pathlib import Path

from seedflow.errors import TransportError
from seedflow.rpc.peers import other_user

log = logging.getLogger(__name__)

MAX_PATH = 107  # bytes of a unix socket's address (sun_path, less its terminator)
BACKLOG = 1024
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """A SOCK_SEQPACKET listener in a fresh 0700 directory of its own.

    Parameters
    ----------
    parent
        Where to make the directory. By default the first that exists, is writable and short enough: the
        user's runtime directory (``XDG_RUNTIME_DIR``), the one for temporary files, ``/tmp``.

    Attributes
    ----------
    path : Path
        Address of the socket.
    strangers
        Connections of other users that were closed.
    exhausted
        How often connections had to wait because there was no file descriptor left.

    Raises
    ------
    TransportError
        If the directory cannot be made, or the socket's address would be too long.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.path = _make_directory([parent] if parent is not None else _default_parents()) / "control"
        self.strangers = self.exhausted = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(self.path))
            self.path.chmod(0o600)
            self._socket.listen(BACKLOG)
        except OSError as error:
            self.close()
            raise TransportError(f"cannot listen on the control socket {self.path}: {error}") from error

    def fileno(self) -> int:
        """File descriptor of the listening socket."""
        return self._socket.fileno()

    def accept(self, most: int) -> tuple[list[socket.socket], bool]:
        """Accept up to `most` waiting connections of this user, without blocking.

        Returns
        -------
        list of socket, bool
            The connections, non-blocking; and whether this process or machine has run out of file
            descriptors, so that accepting makes sense only after a pause.
        """
        accepted: list[socket.socket] = []
        for _ in range(most):
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                break
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self.exhausted += 1
                log.warning("a connection has to wait to be accepted: %s (see ulimit -n)", error)
                return accepted, True
            if stranger := other_user(sock):
                self.strangers += 1
                log.warning("closed a connection of %s, who does not own this run", stranger)
                sock.close()
                continue
            sock.setblocking(False)
            accepted.append(sock)
        return accepted, False

    def close(self) -> None:
        """Close the socket; remove it and its directory. What somebody else has removed is no error."""
        self._socket.close()
        remove_socket(self.path)


def remove_socket(path: Path) -> None:
    """Remove a control socket and its directory; for whoever outlives a listener that was killed."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    with contextlib.suppress(FileNotFoundError):
        path.parent.rmdir()


def _make_directory(parents: list[Path]) -> Path:
    problems = []
    for parent in parents:
        try:
            directory = Path(tempfile.mkdtemp(prefix="seedflow-", dir=parent))
        except OSError as error:
            problems.append(f"{parent}: {error.strerror}")
            continue
        size = len(os.fsencode(directory / "control"))
        if size <= MAX_PATH:
            return directory
        directory.rmdir()
        problems.append(
            f"{directory}/control has {size} bytes, at most {MAX_PATH} fit into a socket's address"
        )
    raise TransportError(
        f"no directory for the control socket: {'; '.join(problems)}; set TMPDIR to a short, writable path"
    )


def _default_parents() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    named = [runtime] if runtime else []
    return [Path(name) for name in dict.fromkeys([*named, tempfile.gettempdir(), "/tmp"])]

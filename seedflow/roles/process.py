"""The supervisor's half: starting, reading, stopping and killing a role process."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seedflow.errors import TransportError
from seedflow.roles.family import kill_members
from seedflow.roles.messages import BOARD_SIZE, MAX_LINE, MAX_START_LINE, Message, decode, encode


class RoleProcess:
    """A role process, seen from its supervisor.

    Nothing here blocks but `stop`; there is no thread. Call `poll_messages` every second or so: it also
    hands the rest of a long start message to the role.

    Parameters
    ----------
    module
        Run as ``python -m module``.
    start
        The start message, without its kind.
    log_path
        The role's stdout and stderr are appended here; made with mode 0600.
    env
        Added to this process's environment for the role.
    inherited
        File descriptors that the role gets under the same numbers.
    """

    def __init__(
        self,
        module: str,
        start: Mapping[str, Any],
        log_path: Path,
        env: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self.module = module
        self.log_path = Path(log_path)
        self._marker = f"SEEDFLOW_ROLE_{secrets.token_hex(8)}"
        self._incoming = bytearray()
        self._lock = threading.RLock()
        self._returncode: int | None = None
        self._closed = False
        self._board = bytes(BOARD_SIZE)
        self._board_fd = os.memfd_create("seedflow-board", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._board_fd, BOARD_SIZE)
            message = {**start, "kind": "start", "marker": self._marker, "board": self._board_fd}
            self._outgoing = bytearray(encode(message, MAX_START_LINE))
            self._popen = self._start(env or {}, inherited)
        except BaseException:
            os.close(self._board_fd)
            raise
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stdout.fileno(), False)
        self._pump()

    def _start(self, env: Mapping[str, str], inherited: Sequence[int]) -> subprocess.Popen[bytes]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", self.module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                pass_fds=(self._board_fd, *inherited),
                env=_child_environment({**env, self._marker: "1"}),
            )
        finally:
            os.close(log)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def __repr__(self) -> str:
        return f"<RoleProcess {self.module} pid={self.pid} returncode={self._returncode}>"

    def __enter__(self) -> RoleProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def send(self, message: Message) -> None:
        """Send an ``endpoint`` message, ``{"kind": "endpoint", "endpoint": {...}}``. Never blocks.

        Nothing happens where the role has ended already; its exit code tells.
        """
        with self._lock:
            if not self._closed:
                self._outgoing += encode(message)
                self._pump()

    def poll_messages(self) -> list[Message]:
        """What the role has sent since the last call, in order.

        Raises
        ------
        TransportError
            For a line that is no message, after the messages before it were returned.
        """
        messages: list[Message] = []
        with self._lock:
            self._pump()
            while (end := self._incoming.find(b"\n")) >= 0 or len(self._incoming) > MAX_LINE:
                line = bytes(self._incoming[: end if end >= 0 else MAX_LINE])
                try:
                    messages.append(decode(line, repr(self)))
                except TransportError:
                    if messages:
                        return messages
                    del self._incoming[: len(line) + 1]
                    raise
                del self._incoming[: len(line) + 1]
        return messages

    def returncode(self) -> int | None:
        """The exit code, 128 + n after signal n, or None while the role runs.

        Once the role has ended, whatever it has left behind is killed before this returns its code.
        """
        with self._lock:
            if self._returncode is not None or not self._has_ended():
                return self._returncode
            # The ended role is not reaped yet, so its process id still names its session.
            kill_members(self.pid, self._marker)
            code = self._popen.wait()
            self._returncode = 128 - code if code < 0 else code
            self._pump()
            self._board = self.board()
            os.close(self._board_fd)
            self._closed = True
            self._outgoing.clear()
            self._stdin.close()
            self._stdout.close()
            return self._returncode

    def stop(self, grace: float) -> int:
        """Ask the role to stop, wait for at most `grace` seconds, then kill it; returns the exit code."""
        deadline = time.monotonic() + grace
        self.send({"kind": "stop"})
        terminated = False
        while (code := self.returncode()) is None:
            now = time.monotonic()
            if now >= deadline:
                return self.kill()
            if not terminated and now >= deadline - grace / 2:
                # It may not read its pipe yet: a role that is still importing ends by this.
                self._popen.send_signal(signal.SIGTERM)
                terminated = True
            with self._lock:
                self._pump()
            time.sleep(0.02)
        return code

    def crash(self, grace: float) -> int:
        """End a role that does not react, and have its log say where it was; returns the exit code."""
        deadline = time.monotonic() + grace
        self._popen.send_signal(signal.SIGABRT)  # faulthandler writes every thread's stack
        while (code := self.returncode()) is None:
            if time.monotonic() >= deadline:
                return self.kill()
            time.sleep(0.02)
        return code

    def is_stopped(self) -> bool:
        """Whether a signal, such as SIGSTOP, has stopped the role."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b")")[2].split()[0] == b"T"

    def board(self) -> bytes:
        """What the role's `RoleChannel.board` holds, or held at its end."""
        with self._lock:
            return self._board if self._closed else os.pread(self._board_fd, BOARD_SIZE, 0)

    def kill(self) -> int:
        """End the role and everything it has started, at once; returns the exit code."""
        while (code := self.returncode()) is None:
            self._popen.kill()
            time.sleep(0.005)
        return code

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of the role's log."""
        with open(self.log_path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 65536))
            text = file.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _has_ended(self) -> bool:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, options) is not None
        except ChildProcessError:  # somebody else's waitpid(-1) has reaped it
            return True

    def _pump(self) -> None:
        """Write what waits to be written, read what is there, as far as the pipes go without blocking."""
        while self._outgoing and not self._closed:
            try:
                del self._outgoing[: os.write(self._stdin.fileno(), self._outgoing[:65536])]
            except BlockingIOError:
                break
            except BrokenPipeError:  # the role has ended; its exit code and log tell why
                self._outgoing.clear()
        while not self._closed and len(self._incoming) <= 4 * MAX_LINE:
            try:
                data = os.read(self._stdout.fileno(), 65536)
            except BlockingIOError:
                break
            if not data:
                break
            self._incoming += data


def _child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment and `extra`, so that the child imports this very seedflow."""
    environment = {**os.environ, **extra}
    root = Path(__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment

"""Hosts of their own on one machine: network, names, /tmp and /dev/shm of each are its own.

A host is a set of namespaces, held by a process that sleeps, and a cable to a bridge: the bridge stands for
the machine where the Dask scheduler and the driver are. Files elsewhere are shared, as by NFS. When the
holding process ends, so does its network, cable included.

Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from distributed import Client

ROOT = Path(__file__).parents[2]
DASK = Path(sys.executable).with_name("dask")
PROGRAM = Path(sys.executable).with_name("seedflow")
PATIENCE = 300.0
INTERFACE = "eth0"
"""What every host calls its end of the cable."""
TCP_SECONDS = 12
"""Silence after which Dask gives a connection up; its default is 30, and it takes no less than 11."""

HOLD = """
hostname "$1"
mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
echo up
exec sleep infinity
"""


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll until `condition` holds; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)
    return value


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


class Host:
    """One host; made by `Lab`."""

    def __init__(self, lab: Lab, number: int, name: str) -> None:
        self.address = f"{lab.net}.{10 + number}"
        self.cable = f"sf{lab.id}v{number}"
        self._lab = lab
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-e", "-c", HOLD, "sh"]
        self._holder = subprocess.Popen(
            [*command, name, str(lab.temporary)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        inside = f"sf{lab.id}i{number}"
        _ip("link", "add", self.cable, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", str(self._holder.pid))
        _ip("link", "set", self.cable, "master", lab.bridge, "up")
        self._inside("ip", "addr", "add", f"{self.address}/24", "dev", inside)
        self._inside("ip", "link", "set", inside, "name", INTERFACE, "up")

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program on this host."""
        return self._lab.start(*self._entering(), *command)

    def cut(self) -> None:
        """Pull the cable: whoever talks with this host hears nothing any more, not even that."""
        _ip("link", "set", self.cable, "down")

    def heal(self) -> None:
        _ip("link", "set", self.cable, "up")

    def worker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a Dask worker of one thread, with its nanny."""
        return self.start(
            *(str(DASK), "worker", self._lab.scheduler, "--host", self.address),
            *("--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--death-timeout", "120"),
            *("--local-directory", str(self._lab.temporary), *options),
        )

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()

    @property
    def entering(self) -> str:
        """What stands before a shell's command to run it on this host."""
        return " ".join(self._entering())

    def _entering(self) -> list[str]:
        return ["nsenter", "--target", str(self._holder.pid), "--net", "--uts", "--mount"]

    def _inside(self, *command: str) -> None:
        subprocess.run([*self._entering(), *command], check=True, capture_output=True, timeout=30)


class Lab:
    """Some hosts and a Dask scheduler that they reach. A context manager.

    Parameters
    ----------
    directory
        Where logs and run directories go: what all hosts see alike.
    names
        Of the hosts.

    Attributes
    ----------
    scheduler
        Address of the scheduler.
    """

    def __init__(self, directory: Path, names: tuple[str, ...] = ("host1", "host2", "host3")) -> None:
        self.id = secrets.token_hex(3)
        self.net = f"10.{64 + int(self.id[:2], 16) % 128}.{int(self.id[2:4], 16)}"
        self.bridge = f"sf{self.id}"
        self.directory = directory
        self.temporary = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))  # short: socket addresses are
        self.marker = f"SEEDFLOW_TEST_{self.id}"
        self._started: list[subprocess.Popen[bytes]] = []
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self.temporary, ignore_errors=True)
            _ip("link", "add", self.bridge, "type", "bridge")
            stack.callback(_ip, "link", "del", self.bridge)
            _ip("addr", "add", f"{self.net}.1/24", "dev", self.bridge)
            _ip("link", "set", self.bridge, "up")
            self.hosts = [
                stack.enter_context(contextlib.closing(Host(self, number, name)))
                for number, name in enumerate(names, 1)
            ]
            stack.callback(self._end)
            file = directory / "scheduler.json"
            self.start(
                *(str(DASK), "scheduler", "--host", f"{self.net}.1", "--port", "0"),
                *("--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)),
            )
            self.scheduler = str(until(lambda: _address_in(file), "the scheduler"))
            self._stack = stack.pop_all()

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program on the scheduler's machine; its output goes to a log."""
        environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "XDG_RUNTIME_DIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": f"{TCP_SECONDS}s",
            self.marker: "1",
        }
        with (self.directory / f"process-{len(self._started)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.directory,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def output(self, process: subprocess.Popen[bytes]) -> str:
        """What a program has printed so far."""
        return (self.directory / f"process-{self._started.index(process)}.log").read_text()

    def client(self) -> Client:
        """A connection of the cluster's owner."""
        return Client(self.scheduler, set_as_default=False, timeout=60)

    def family(self, *words: str) -> list[int]:
        """Living processes that come from this lab, with all these words in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"{self.marker}=1".encode() not in (entry / "environ").read_bytes():
                    continue
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if state not in "ZX" and all(word.encode() in command for word in words):
                found.append(int(entry.name))
        return found

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        """End all that came from this lab, and wait for it."""
        for _ in range(100):
            family = self.family()
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not family:
                break
            time.sleep(0.1)
        for process in self._started:
            process.wait(30)


def _address_in(file: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return str(json.loads(file.read_text())["address"])
    return None


@contextlib.contextmanager
def lab(directory: Path, *names: str) -> Iterator[Lab]:
    """A lab whose hosts have these names."""
    with Lab(directory, names or ("host1", "host2", "host3")) as made:
        yield made

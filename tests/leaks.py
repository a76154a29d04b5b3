"""What a test leaves behind: child processes, threads, open files and sockets.

`conftest.py` takes stock before and after every test and fails one that leaves something. Some libraries
keep things for the life of the process on purpose; these are listed here with the reason.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker

import psutil

# Thread name prefix -> why it may stay.
LASTING_THREADS = {
    "Dask-Callback-Thread": "distributed's pool for callbacks of futures, one per process, never shut down",
    "Dask-Offload": "distributed's pool for large messages, one per process, never shut down",
    "TCP-Executor": "distributed's pool for TLS handshakes, one per process, never shut down",
}

# Part of a command line -> why the child may stay.
LASTING_CHILDREN = {
    "multiprocessing.resource_tracker": "started once per process by multiprocessing, ends with it",
    "multiprocessing.forkserver": "started once per process by multiprocessing, ends with it",
}

# Path prefix -> why such a file may stay open.
LASTING_FILES = {
    sys.prefix: "imports and data files of installed packages",
    sys.base_prefix: "the interpreter's own library",
    "/usr/": "system libraries, fonts and time zones",
    "/lib": "system libraries",
    "/dev/shm/pym-": "multiprocessing keeps the arenas of its shared heap for reuse",
    "/dev/null": "opened once by libraries",
    "/dev/urandom": "opened once by libraries",
    "/dev/pts/": "the terminal",
    "/proc/": "psutil and torch keep some open",
    "/sys/": "torch and OpenMP look at the machine's topology",
}

# Module -> what it opens when it is first used and keeps. The test that first loads it is not charged.
OPENS_ON_FIRST_USE = {
    "grpc": "its event engine's epoll and event descriptors",
    "distributed": "the wake-up sockets of its global event loop",
}


@dataclass(frozen=True)
class Stock:
    """What the process owns at one moment."""

    children: dict[int, str]
    threads: dict[int, threading.Thread]
    files: dict[str, int]
    modules: frozenset[str]


def take_stock() -> Stock:
    """List the process's children (of children, too), threads and open descriptors."""
    children = {}
    for child in psutil.Process().children(recursive=True):
        try:
            children[child.pid] = " ".join(child.cmdline()) or f"{child.name()} ({child.status()})"
        except psutil.NoSuchProcess:
            continue
    # multiprocessing's resource tracker is started once per process; this is the pipe to it.
    tracker = getattr(resource_tracker._resource_tracker, "_fd", None)
    pooled = _pooled_by_dask()
    threads = {id(thread): thread for thread in threading.enumerate()}
    files: dict[str, int] = {}
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) == tracker or int(entry) in pooled:
            continue
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except FileNotFoundError:
            continue  # the descriptor of this very listing
        # Descriptors without an inode of their own (epoll, eventfd) are told apart by their number.
        files[f"{target} #{entry}" if target.startswith("anon_inode:") else target] = int(entry)
    return Stock(children, threads, files, frozenset(OPENS_ON_FIRST_USE) & sys.modules.keys())


def left_behind(before: Stock, patience: float = 5.0) -> list[str]:
    """What is there now and was not `before`, after giving it `patience` seconds to go away."""
    deadline = time.monotonic() + patience
    while True:
        found = _new(before, take_stock())
        if not found or time.monotonic() > deadline:
            return found
        gc.collect()
        subprocess._cleanup()  # type: ignore[attr-defined] # reaps children whose Popen is gone
        time.sleep(0.02)


def _new(before: Stock, now: Stock) -> list[str]:
    found = [
        f"process {pid}: {command}"
        for pid, command in now.children.items()
        if pid not in before.children and not any(part in command for part in LASTING_CHILDREN)
    ]
    found += [
        f"thread {thread.name}"
        for key, thread in now.threads.items()
        if key not in before.threads and not thread.name.startswith(tuple(LASTING_THREADS))
    ]
    if now.modules == before.modules:
        found += [
            f"descriptor {number}: {target}"
            for target, number in now.files.items()
            if target not in before.files and not _lasting(target)
        ]
    return found


def _lasting(target: str) -> bool:
    return target.startswith(tuple(LASTING_FILES))


def _pooled_by_dask() -> set[int]:
    """Descriptors of the connections to workers that Dask clients keep for reuse and close with themselves.

    A client that a test forgets is still found, by its thread and its connection to the scheduler.
    """
    module = sys.modules.get("distributed.client")
    found = set()
    for client in list(module.Client._instances) if module else []:
        for comms in [*client.rpc.available.values(), *client.rpc.occupied.values()]:
            streams = [getattr(comm, "stream", None) for comm in list(comms)]
            found |= {stream.socket.fileno() for stream in streams if stream and stream.socket}
    return found

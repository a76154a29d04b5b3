"""Cores, memory, shared memory, file descriptors, sockets and scratch space of this host."""

from __future__ import annotations

import math
import os
import resource
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from seedflow.doctor.finding import Finding
from seedflow.errors import TransportError
from seedflow.replay.memory import gib, machine_bytes
from seedflow.rpc.listener import Listener

SHARED_MEMORY = Path("/dev/shm")
SHARED_BYTES = 256 * 1024
"""What Dask's workers need there, by multiprocessing; seedflow itself needs nothing."""
FEW_DESCRIPTORS = 1024
LITTLE_SCRATCH = 2 * 2**30
UNLIMITED = resource.RLIM_INFINITY


def look_at_machine() -> Iterator[Finding]:
    """What this host offers to a run."""
    yield Finding("machine", "host", socket.gethostname(), socket.gethostname())
    yield _cores(usable_cores(), os.cpu_count() or 1)
    memory = machine_bytes()
    yield Finding("machine", "memory_bytes", memory, f"{gib(memory)}, that of the cgroup where it is less")
    yield _shared_memory(SHARED_MEMORY)
    yield _descriptors(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _socket()
    yield _scratch(Path(tempfile.gettempdir()))


def usable_cores(root: Path = Path("/")) -> float:
    """Cores that this process may use: those it is bound to, or less where a cgroup has a quota."""
    cores = float(len(os.sched_getaffinity(0)))
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue
        group = Path(path.lstrip("/"))
        for ancestor in (group, *group.parents):
            for text in _lines(root / "sys/fs/cgroup" / ancestor / "cpu.max"):
                quota, _, period = text.partition(" ")
                if quota.isdigit() and period.isdigit():
                    cores = min(cores, int(quota) / int(period))
    return cores


def _cores(usable: float, there: int) -> Finding:
    text = f"{usable:g} usable of {there}"
    if usable < 2:
        remedy = "ask the batch system for 2 or more (--cpus-per-task), or expect learner and actors to share"
        return Finding("machine", "cores", usable, text, "missing", remedy)
    return Finding("machine", "cores", usable, text)


def _shared_memory(place: Path) -> Finding:
    name = "shared_memory_bytes"
    remedy = f"mount a tmpfs at {place} (docker: --shm-size=64m; apptainer: --bind {place})"
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Finding("machine", name, None, f"{place}: {error.strerror}", "problem", remedy)
    text = f"{gib(free)} free in {place}"
    if free < SHARED_BYTES or not os.access(place, os.W_OK):
        text += f"; Dask's workers need {SHARED_BYTES // 1024} KiB that can be written"
        return Finding("machine", name, free, text, "problem", remedy)
    return Finding("machine", name, free, text)


def _descriptors(soft: int, hard: int) -> Finding:
    limit = math.inf if soft == UNLIMITED else soft
    text = "unlimited" if soft == UNLIMITED else f"{soft:,}"
    if limit < FEW_DESCRIPTORS:
        more = hard if hard != UNLIMITED and hard < FEW_DESCRIPTORS else FEW_DESCRIPTORS
        text += ": the learner needs one for each actor, and about 100 besides"
        remedy = f"ulimit -n {more}" if more > soft else "ask for a higher hard limit (limits.conf)"
        return Finding("machine", "file_descriptors", soft, text, "missing", remedy)
    return Finding("machine", "file_descriptors", None if limit == math.inf else soft, text)


def _socket() -> Finding:
    """Whether the learner's control socket would find a place; found out by making one."""
    try:
        listener = Listener()
    except TransportError as error:
        remedy = "export TMPDIR=/tmp, or another short path that can be written"
        return Finding("machine", "control_socket", None, str(error), "problem", remedy)
    listener.close()
    place = str(listener.path.parent.parent)
    return Finding("machine", "control_socket", place, f"in {place}")


def _scratch(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{gib(free)} free in {place}"
    if free < LITTLE_SCRATCH:
        remedy = "export TMPDIR to a disk of this node, not of the network"
        return Finding("machine", "scratch_bytes", free, text, "missing", remedy)
    return Finding("machine", "scratch_bytes", free, text)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []

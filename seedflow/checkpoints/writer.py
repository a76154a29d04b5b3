"""Who writes checkpoints: a process, told apart from every other one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_REQUIRED: dict[str, type] = {
    "host": str,
    "boot": str,
    "pid": int,
    "started": int,
    "job": str,
    "restart": int,
}
_OPTIONAL: dict[str, Any] = {"run": "", "generation": 0, "released": False}
"""What records of earlier releases lack, and what that means."""
JOB_IDS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Where a batch system tells its jobs who they are."""


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
        The batch job, empty without one, and how often it was requeued: it keeps its id, and before it is
        started again it has ended. Only Slurm tells how often; elsewhere that is 0.
    run, generation
        The run on a cluster, empty without one, and which start of its learner this is: a later start
        takes over from an earlier one, which may be cut off and go on somewhere.
    released
        Whether it has let go in order: the record then only keeps earlier generations out.
    """

    host: str
    boot: str
    pid: int
    started: int
    job: str
    restart: int
    run: str = ""
    generation: int = 0
    released: bool = False

    @classmethod
    def this(cls, environ: Mapping[str, str] = os.environ, *, run: str = "", generation: int = 0) -> Writer:
        """The calling process."""
        restart = environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
            job=next((environ[name] for name in JOB_IDS if environ.get(name)), ""),
            restart=int(restart) if restart.isdecimal() else 0,
            run=run,
            generation=generation,
        )

    @classmethod
    def parse(cls, data: bytes) -> Writer | None:
        """Read a record; None where it is not one."""
        try:
            document = json.loads(data)
            values = {name: document.get(name, default) for name, default in _OPTIONAL.items()}
            values |= {name: document[name] for name in _REQUIRED}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        expected = {**_REQUIRED, **{name: type(default) for name, default in _OPTIONAL.items()}}
        if any(type(values[name]) is not kind for name, kind in expected.items()):
            return None
        return cls(**values)

    def encode(self) -> bytes:
        """The record as it is stored."""
        return json.dumps(asdict(self)).encode()

    def is_gone(self, seen_from: Writer) -> bool:
        """Whether it is certain that the process has ended or let go; another host's cannot be seen."""
        if self.released:
            return True
        if self.job and self.job == seen_from.job and self.restart < seen_from.restart:
            return True
        if self.host != seen_from.host:
            return False
        return self.boot != seen_from.boot or _started(self.pid) != self.started

    def fences(self, other: Writer) -> bool:
        """Whether `other` is an earlier start of the same run's learner, and must write no more."""
        return bool(self.run) and self.run == other.run and self.generation > other.generation

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" (job {self.job})" if self.job else "")


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

"""What the replay's memory will be, said before anything starts."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from seedflow.config import ReplayConfig
from seedflow.errors import ConfigError
from seedflow.replay.chunks import ARRAY_OVERHEAD, CHUNK_OVERHEAD
from seedflow.replay.codec import CHECKSUM_BYTES
from seedflow.replay.layout import ReplaySpec

SHARE = 0.5
"""Part of the machine's memory that the replay may take where the configuration does not say."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes expected and allowed.

    Attributes
    ----------
    transitions
        Indices that a full replay holds, each stored once.
    raw
        Bytes of a full replay before encoding.
    least
        Bytes that a full replay takes for certain: arrays that are not compressed, and Python's objects.
    limit
        Bytes allowed; above it the oldest sequences go.
    """

    sequences: int
    length: int
    transitions: int
    raw: int
    least: int
    limit: int

    def __str__(self) -> str:
        return (
            f"replay: {self.sequences:,} sequences of {self.length} indices are {self.transitions:,} "
            f"transitions, {gib(self.raw)} before compression; {gib(self.least)} are taken for certain, "
            f"{gib(self.limit)} are allowed, beyond which the oldest sequences go (replay.memory_gib)"
        )


def plan_memory(spec: ReplaySpec, config: ReplayConfig, report: Callable[[str], None]) -> MemoryPlan:
    """Work out what a full replay takes, and say it.

    Parameters
    ----------
    spec, config
        Of the replay.
    report
        Takes the one line that says it.

    Raises
    ------
    ConfigError
        When what cannot shrink exceeds the limit: the capacity would never be reached. The message has
        the numbers.
    """
    plan = expected_memory(spec, config)
    least, limit = plan.least, plan.limit
    if least > limit:
        fits = max(1, config.capacity * limit // least - spec.chunks_per_sequence)
        kept = [a for a in spec.arrays if not spec.compressed(a)]
        raise ConfigError(
            f"replay.capacity = {config.capacity} takes at least {gib(least)} for what does not compress "
            f"({', '.join(a.name for a in kept)}), and {gib(limit)} are allowed "
            f"({_origin(config.memory_gib)}); lower replay.capacity to {fits}, or raise replay.memory_gib"
        )
    report(str(plan))
    return plan


def expected_memory(spec: ReplaySpec, config: ReplayConfig) -> MemoryPlan:
    """Work out what a full replay takes, and what it may take on this machine."""
    steps = spec.period // spec.chunk  # chunks from one sequence's beginning to the next one's
    stored = min(steps, spec.chunks_per_sequence)
    chunks = config.capacity * stored + max(0, spec.chunks_per_sequence - steps)
    beginnings = math.ceil(chunks / stored)
    rows = chunks * spec.rows
    state = beginnings * sum(a.nbytes for a in spec.state)
    raw = rows * sum(a.nbytes for a in spec.fields) + state
    kept = [a for a in spec.arrays if not spec.compressed(a)]
    least = sum(a.nbytes * (beginnings if a in spec.state else rows) for a in kept)
    arrays = chunks * len(spec.fields) + beginnings * len(spec.state)
    least += arrays * (CHECKSUM_BYTES + ARRAY_OVERHEAD) + chunks * CHUNK_OVERHEAD
    limit = limit_bytes(config.memory_gib)
    return MemoryPlan(config.capacity, spec.length, chunks * spec.chunk, raw, least, limit)


def limit_bytes(memory_gib: float | None) -> int:
    """The limit in bytes: as configured, else half of what this process may use at all."""
    return int(machine_bytes() * SHARE if memory_gib is None else memory_gib * 2**30)


def machine_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use: the machine's, or less where a cgroup says so.

    Parameters
    ----------
    root
        Where ``proc`` and ``sys`` are.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for ancestor in (
            group,
            *group.parents,
        ):  # in a container the path may be the host's: then none is there
            limits += [int(text) for text in _lines(base / ancestor / file) if text.isdigit()]
    return min(limits)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _origin(memory_gib: float | None) -> str:
    return (
        "replay.memory_gib" if memory_gib is not None else f"{SHARE:g} of this machine's memory or cgroup's"
    )


def gib(count: float) -> str:
    """A number of bytes in words."""
    return f"{count / 2**30:.3g} GiB"

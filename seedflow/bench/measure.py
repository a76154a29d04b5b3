"""Alternating runs, medians, and the CPU time of processes."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import psutil

Figures = dict[str, float]
"""What one run of one variant measured, by name."""


def alternate(variants: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, Figures]:
    """Run every variant once a round; return the median of each figure by variant.

    Parameters
    ----------
    variants
        What to run, by name; they take turns.
    rounds
        Runs of each.
    """
    runs: dict[str, list[Figures]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, run in variants.items():
            runs[name].append(run())
    return {name: median_of(figures) for name, figures in runs.items()}


def median_of(runs: list[Figures]) -> Figures:
    """The median of each figure over several runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def cpu_seconds(pid: int) -> float:
    """CPU time, user and system, that the threads of one process have taken; not its children's."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def cpu_seconds_by_process(root: int) -> dict[int, tuple[str, float]]:
    """Command line and CPU time of a process and all its descendants, by process id."""
    found = {}
    tree = psutil.Process(root)
    for process in [tree, *tree.children(recursive=True)]:
        try:
            with process.oneshot():
                times = process.cpu_times()
                found[process.pid] = (" ".join(process.cmdline()), float(times.user + times.system))
        except psutil.NoSuchProcess:  # it ended while the tree was walked
            continue
    return found


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, load, versions."""
    import numpy
    import torch

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()

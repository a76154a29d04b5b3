"""Measuring the kernels against torch and against the memory bandwidth.

A workload's arguments exist in several sets, enough to overflow a GPU's caches, and calls go round them, as
they do in training.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_timing import Timer
from benchmarks.gpu_workloads import WORKLOADS, Arguments, Maker, Workload, vtrace
from seedflow import kernels
from seedflow.kernels import registry

CACHE = 256 << 20  # bytes: more than any GPU keeps in its caches
MOST_SETS = 24
CALLS = 48  # of one measurement
COMPILING = 45.0  # seconds that torch.compile may need
TOLERANCE = 1e-3

COLUMNS = (
    "kernel",
    "MB",
    "floor",
    "gpu",
    "of floor",
    "eager gpu",
    "compiled gpu",
    "call",
    "eager call",
    "compiled call",
    "faster",
    "error",
    "note",
)
"""Of `measure`, times in microseconds: bytes to be moved, the time that takes, the kernel's own, the share of
it that is the floor; torch's times; then the same with every call made from Python. How many times faster
than eager torch a call is, and how far the results are from torch's."""


def measure(
    timer: Timer,
    bandwidth: float | None,
    remaining: Callable[[], float],
    device: str,
    workloads: Sequence[Workload] = WORKLOADS,
) -> list[Mapping[str, Any]]:
    """Measure workloads, microseconds a call: alone on the GPU, and called from Python.

    `bandwidth` in bytes a second gives the least time that each can take; torch.compile has its turn when all
    else is done, as long as there are `remaining` seconds.
    """
    rows: dict[Workload, dict[str, Any]] = {workload: {"kernel": str(workload)} for workload in workloads}
    for workload, row in rows.items():
        if remaining() < 2.0:
            row["note"] = "out of time"
            continue
        _measure_twins(timer, workload, device, row)
        if bandwidth:
            row["floor"] = workload.moved / bandwidth * 1e6
            row["of floor"] = row["floor"] / row["gpu"]
    for workload, row in rows.items():
        if workload.compiled and "note" not in row:
            if remaining() < COMPILING:
                row["note"] = "torch.compile: out of time"
            else:
                _measure_compiled(timer, workload, device, row)
    return [{column: row.get(column) for column in COLUMNS} for row in rows.values()]


def _measure_twins(timer: Timer, workload: Workload, device: str, row: dict[str, Any]) -> None:
    ours, eager = registry.twin(workload.operation, device), registry.twins(workload.operation)["torch"]
    row["MB"] = workload.moved / 1e6
    error = difference(workload, ours, eager, device)
    row["error"] = error if math.isfinite(error) else None
    if not error < TOLERANCE:
        row["note"] = "wrong results"
    sets = argument_sets(workload, device)
    row["gpu"] = timer.gpu(*rounds(ours, sets))
    row["call"] = timer.eager(*rounds(ours, sets))
    try:
        row["eager gpu"] = timer.gpu(*rounds(eager, sets))
    except RuntimeError:  # what torch does here cannot be captured in a graph
        row["eager gpu"] = None
    row["eager call"] = timer.eager(*rounds(eager, sets))
    row["faster"] = row["eager call"] / row["call"]


def _measure_compiled(timer: Timer, workload: Workload, device: str, row: dict[str, Any]) -> None:
    eager = registry.twins(workload.operation)["torch"]
    sets = argument_sets(workload, device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = torch.compile(eager, dynamic=False)
            row["compiled call"] = timer.eager(*rounds(compiled, sets))
            row["compiled gpu"] = timer.gpu(*rounds(compiled, sets))
    except Exception as error:  # of the compiler; the row says so
        row["note"] = f"torch.compile: {type(error).__name__}"
    finally:
        torch.compiler.reset()


def argument_sets(workload: Workload, device: str) -> list[Arguments]:
    """Make as many sets of arguments as overflow the caches."""
    count = min(MOST_SETS, max(1, -(-CACHE // workload.moved)))
    return [workload.make(Maker(device, seed)) for seed in range(count)]


def rounds(twin: Callable[..., None], sets: Sequence[Arguments]) -> tuple[Callable[[], None], int]:
    """Return a function that calls a twin going round the sets, and how often it does so."""
    calls = len(sets) * max(1, CALLS // len(sets)) if len(sets) > 1 else 4

    def call() -> None:
        for arguments in itertools.islice(itertools.cycle(sets), calls):
            twin(*arguments)

    return call, calls


def difference(
    workload: Workload, one: Callable[..., None], other: Callable[..., None], device: str
) -> float:
    """How far apart two twins leave their arguments, relative to the larger; NaN where either has one."""
    left, right = (workload.make(Maker(device, 0)) for _ in range(2))
    one(*left)
    other(*right)
    worst = 0.0
    for a, b in zip(_tensors(left), _tensors(right), strict=True):
        if a.numel() == 0:
            continue
        a, b = a.to(torch.float64), b.to(torch.float64)
        distance = float((a - b).abs().max() / b.abs().max().clamp(min=1e-6))
        worst = distance if not distance <= worst else worst
    return worst


def measure_launches(timer: Timer, device: str) -> list[Mapping[str, Any]]:
    """Measure what it costs the host to get a small V-trace going, in several ways."""
    from seedflow.kernels.cuda import launcher
    from seedflow.kernels.cuda.vtrace import scan

    arguments = vtrace(20, 256).make(Maker(device, 0))
    inputs, clips, (vs, advantages) = arguments[:5], arguments[5:9], arguments[9:]
    settings = dict(zip(("rho_bar", "c_bar", "pg_rho_bar", "trace_decay"), clips, strict=True))
    out = kernels.VTraceReturns(vs, advantages)
    twin, stand_in = registry.twin("vtrace", device), registry.twins("vtrace")["torch"]
    twin(*arguments)  # compiles
    with recorded_launches(scan) as launches:
        twin(*arguments)
    launch, given = launches[0]
    numba = launcher.NumbaLaunch(scan.function, scan.parameters)
    ways: dict[str, tuple[int, Callable[[], Any]]] = {
        f"{type(launch).__name__}, arguments ready": (200, lambda: launch(*given)),
        "the CUDA twin": (200, lambda: twin(*arguments)),
        "seedflow.kernels.vtrace(out=...)": (200, lambda: kernels.vtrace(*inputs, **settings, out=out)),
        "one torch operation": (200, lambda: torch.add(vs, advantages, out=vs)),
        "torch's stand-in": (10, lambda: stand_in(*arguments)),
        "Numba's own launch": (20, lambda: numba(*given)),
    }
    rows: list[Mapping[str, Any]] = []
    for name, (times, way) in ways.items():
        rows.append({"way": name, "host us": timer.host(repeated(way, times), times)})
    return rows


def repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    """Return a function that makes a call several times."""

    def calls() -> None:
        for _ in range(times):
            call()

    return calls


@contextmanager
def recorded_launches(kernel: Any) -> Iterator[list[tuple[Callable[..., None], tuple[Any, ...]]]]:
    """Note how a kernel is launched: by what, and with what."""
    launches: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    before = dict(kernel._launches)

    def noting(launch: Callable[..., None]) -> Callable[..., None]:
        def note(*given: Any) -> None:
            launches.append((launch, given))
            launch(*given)

        return note

    kernel._launches.update({index: noting(launch) for index, launch in before.items()})
    try:
        yield launches
    finally:
        kernel._launches.update(before)


def _tensors(arguments: Any) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list):
            yield from argument

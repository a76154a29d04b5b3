"""Test and measure seedflow on a GPU, in one command and under five minutes.

    python -m benchmarks.gpu [--out gpu.json] [--minutes 5] [--only PART ...]

It runs the tests that need a GPU, then measures: the memory bandwidth by a copy; what a launch costs;
inference at several batch sizes, with and without CUDA graphs; the whole learner, with actors that do nothing
but copy; each kernel against torch, eager and compiled, and against the time that its bytes take at that
bandwidth. The learner's parts need seedflow's dependencies, the others torch, numba-cuda and pytest; a part
that lacks a package is skipped and says so. Results are printed as tables and written as JSON.

A part is a function that gets a `Context` and returns tables; add one to `PARTS`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_kernels
from benchmarks.gpu_timing import GpuTimer, Timer

NO_GPU = (
    f"needs a GPU, and torch {torch.__version__} sees none; run this where there is an NVIDIA GPU and a CUDA "
    "build of torch (check nvidia-smi)"
)
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("numpy", "torch", "triton", "numba", "numba-cuda", "cuda-bindings", "cuda-core", "cupy-cuda13x")

SUITE = [
    "-c",
    "tests/kernels/gpu/pytest.ini",
    "--rootdir=.",
    "--confcutdir=tests/kernels/gpu",
    "tests/kernels/gpu",
]
"""Arguments of pytest, as ``make test-kernels-gpu`` has them."""
LEARNER_SUITE = ["tests/gpu"]
"""The same of ``make test-gpu``."""

Row = Mapping[str, Any]
Tables = dict[str, list[Row]]


class SkippedPart(Exception):
    """A part cannot run here; the message says why."""


@dataclass
class Context:
    """What parts share.

    Attributes
    ----------
    timer
        Measures calls.
    ends
        When to be done, on the clock of `time.monotonic`.
    findings
        Numbers that later parts build on, such as ``bandwidth`` in bytes a second.
    """

    timer: Timer
    ends: float
    findings: dict[str, float] = field(default_factory=dict)

    def remaining(self) -> float:
        """Seconds left."""
        return self.ends - time.monotonic()


Part = Callable[[Context], Tables]


def run_suite(context: Context) -> Tables:
    """Run the kernels' tests that need a GPU."""
    need("pytest")
    return run_tests(context, SUITE)


def run_learner_suite(context: Context) -> Tables:
    """Run the learner's tests that need a GPU."""
    for package in ("pytest", "hypothesis", "numba_cuda"):
        need(package)
    load("benchmarks.gpu_learner")
    return run_tests(context, LEARNER_SUITE)


def run_tests(context: Context, arguments: Sequence[str]) -> Tables:
    """Run pytest in a process of its own; returns how many tests passed and so on, and which failed."""
    timeout = max(context.remaining() * 0.4, 30.0)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the tests were not done after {timeout:.0f} s") from error
    counts = outcomes(done.stdout)
    failed: list[Row] = [
        {"failed": line} for line in re.findall(r"^(?:FAILED|ERROR) (.*)$", done.stdout, re.MULTILINE)
    ]
    if done.returncode != 0 and not failed:
        failed = [{"failed": line} for line in (done.stdout + done.stderr).splitlines()[-15:]]
    tables: Tables = {"tests": [{**counts, "exit": done.returncode}]}
    return {**tables, "failures": failed} if failed else tables


def outcomes(output: str) -> dict[str, int]:
    """Read how many tests passed, failed and so on from pytest's last line."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    counts = {
        word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)
    }
    return {word: counts.get(word, 0) for word in ("passed", "failed", "skipped")} | {
        "errors": counts.get("errors", 0) + counts.get("error", 0)
    }


def measure_copy(context: Context) -> Tables:
    """Measure the memory bandwidth, in bytes read and written a second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    microseconds = context.timer.gpu(lambda: target.copy_(source))
    context.findings["bandwidth"] = 2 * source.numel() / microseconds * 1e6
    return {"copy": [{"GB": 2 * source.numel() / 1e9, "TB/s": context.findings["bandwidth"] / 1e12}]}


def measure_kernels(context: Context) -> Tables:
    """Measure every kernel, see `benchmarks.gpu_kernels`."""
    need("numba_cuda")
    bandwidth = context.findings.get("bandwidth")
    return {"kernels": gpu_kernels.measure(context.timer, bandwidth, context.remaining, "cuda")}


def measure_launches(context: Context) -> Tables:
    """Measure what a launch costs on the host."""
    need("numba_cuda")
    return {"launch": gpu_kernels.measure_launches(context.timer, "cuda")}


def measure_inference(context: Context) -> Tables:
    """Measure inference at several batch sizes, see `benchmarks.gpu_learner`."""
    need("numba_cuda")
    return {"inference": load("benchmarks.gpu_learner").measure_inference(context.remaining, "cuda")}


def measure_learner(context: Context) -> Tables:
    """Measure the whole learner, see `benchmarks.gpu_learner`."""
    need("numba_cuda")
    return {"learner": load("benchmarks.gpu_learner").measure_learner(context.remaining, "cuda")}


PARTS: dict[str, Part] = {
    "suite": run_suite,
    "learner suite": run_learner_suite,
    "copy": measure_copy,
    "launch": measure_launches,
    "inference": measure_inference,
    "learner": measure_learner,
    "kernels": measure_kernels,  # last: with torch.compile it takes what time is left
}


def need(package: str) -> None:
    """Skip the calling part where a package is missing."""
    if importlib.util.find_spec(package) is None:
        raise SkippedPart(f"needs the package {package.replace('_', '-')}, which is not installed")


def load(module: str) -> Any:
    """Import a module of ours; skips the calling part where it needs a package that is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        raise SkippedPart(f"needs the package {missing.name}, which is not installed") from missing


def without_gpu(context: Context) -> Tables:
    """Skip a part where there is no GPU."""
    raise SkippedPart(NO_GPU)


def run_parts(parts: Mapping[str, Part], context: Context) -> dict[str, Any]:
    """Run parts one after the other; one that fails or is skipped does not stop the others."""
    report: dict[str, Any] = {}
    for name, part in parts.items():
        began = time.monotonic()
        entry: dict[str, Any]
        if context.remaining() <= 0:
            entry = {"status": "skipped", "reason": "out of time"}
        else:
            try:
                tables = part(context)
                entry = {"status": "failed" if "failures" in tables else "done", "tables": tables}
            except SkippedPart as skipped:
                entry = {"status": "skipped", "reason": str(skipped)}
            except Exception as error:  # told in the report; the next part may work
                entry = {"status": "failed", "reason": repr(error), "traceback": traceback.format_exc()}
        report[name] = {**entry, "seconds": round(time.monotonic() - began, 1)}
        print(render(name, report[name]), flush=True)
    return report


def render(name: str, entry: Mapping[str, Any]) -> str:
    """Write a part's outcome for a reader."""
    lines = [f"== {name}: {entry['status']} in {entry['seconds']} s"]
    if "reason" in entry:
        lines.append(f"   {entry['reason']}")
    for table in entry.get("tables", {}).values():
        lines += ["", table_of(table)]
    return "\n".join([*lines, ""])


def table_of(rows: Sequence[Row]) -> str:
    """Lay out rows as a table with a column for every key; numbers get three digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    texts = [columns, *([cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in texts) for i in range(len(columns))]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in texts
    )


def cell(value: Any) -> str:
    """Write one value: three significant digits, and a dash for what was not measured."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def describe_machine() -> dict[str, Any]:
    """Which GPU and which versions were measured."""
    properties = torch.cuda.get_device_properties(0)
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "packages": versions,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code, 0 where no part failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=str(__doc__).split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="where to write JSON")
    parser.add_argument("--minutes", type=float, default=5.0, help="time for everything")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run")
    options = parser.parse_args(arguments)
    has_gpu = torch.cuda.is_available()
    machine = describe_machine() if has_gpu else {"gpu": None}
    print(json.dumps(machine, indent=2))
    context = Context(GpuTimer(), time.monotonic() + 60 * options.minutes)
    parts = {name: part if has_gpu else without_gpu for name, part in PARTS.items() if name in options.only}
    report = run_parts(parts, context)
    options.out.write_text(json.dumps({"version": 1, "machine": machine, "parts": report}, indent=2) + "\n")
    print(f"written to {options.out}")
    if not has_gpu:
        print(f"nothing was tested or measured: {NO_GPU}", file=sys.stderr)
        return 1
    return int(any(entry["status"] == "failed" for entry in report.values()))


if __name__ == "__main__":
    raise SystemExit(main())

"""Compiling CUDA kernels without a GPU: Python to PTX by Numba and nvvm, PTX to machine code by ptxas."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seedflow.kernels.cuda.launcher import Kernel

Capability = tuple[int, int]

PARTS = {
    "numba_cuda": "numba-cuda>=0.30.4,<0.31",
    "nvvm": "nvidia-nvvm==13.0.*",
    "nvrtc": "nvidia-cuda-nvrtc==13.0.*",
    "ptxas": "nvidia-cuda-nvcc==13.0.*",
}


def missing_part() -> str | None:
    """The first part of the toolkit that is not here, and how to get it."""
    if importlib.util.find_spec("numba_cuda") is None:
        return _how_to_get("numba_cuda")
    from cuda import pathfinder

    for library in ("nvvm", "nvrtc"):
        try:
            pathfinder.load_nvidia_dynamic_lib(library)
        except pathfinder.DynamicLibNotFoundError:
            return _how_to_get(library)
    if pathfinder.find_nvidia_binary_utility("ptxas") is None:
        return _how_to_get("ptxas")
    return None


def need_toolkit() -> None:
    """Skip the calling module where a part of the toolkit is missing."""
    reason = missing_part()
    if reason:
        pytest.skip(reason, allow_module_level=True)


@dataclass(frozen=True)
class Assembly:
    """What ptxas tells about a kernel; sizes in bytes."""

    registers: int
    stack: int
    spills: int
    shared: int


@functools.cache
def ptx_of(kernel: Kernel, capability: Capability) -> str:
    """Compile a kernel to PTX."""
    from numba import cuda

    with _pretended_device(capability):
        code, _ = cuda.compile_ptx(kernel.function.py_func, kernel.types(), cc=capability, device=False)
    return str(code)


@functools.cache
def assembly_of(kernel: Kernel, capability: Capability) -> Assembly:
    """Assemble a kernel's PTX."""
    from cuda import pathfinder

    ptxas = pathfinder.find_nvidia_binary_utility("ptxas")
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "kernel.ptx"), Path(directory, "kernel.cubin")
        source.write_text(ptx_of(kernel, capability))
        major, minor = capability
        command = [ptxas, "--verbose", "--warn-on-spills", f"--gpu-name=sm_{major}{minor}"]
        done = subprocess.run(
            [*command, source, "--output-file", target],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert target.stat().st_size > 0

    def number(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, done.stderr)))

    assert "Used" in done.stderr, done.stderr
    return Assembly(
        registers=number(r"Used (\d+) registers"),
        stack=number(r"(\d+) bytes stack frame"),
        spills=number(r"(\d+) bytes spill (?:stores|loads)"),
        shared=number(r"(\d+) bytes smem"),
    )


def widths_of_parameters(ptx: str) -> list[int]:
    """How many bytes the kernel reads of each parameter."""
    head = ptx[ptx.index(".entry") : ptx.index("{")]
    return [int(bits) // 8 for bits in re.findall(r"\.param \.[bfsu](\d+) ", head)]


def _how_to_get(part: str) -> str:
    return (
        f"needs {part}: pip install '{PARTS[part]}' (pip install 'seedflow[test-cuda]' brings all that these "
        "tests need)"
    )


@contextmanager
def _pretended_device(capability: Capability) -> Iterator[None]:
    """Let Numba compile device functions, for which it asks the current device what it can do."""
    from numba.cuda import dispatcher

    def current() -> Any:
        return SimpleNamespace(compute_capability=capability)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "get_current_device", current)
        yield

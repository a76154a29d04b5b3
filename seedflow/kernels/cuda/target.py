"""Numba's CUDA target, imported in this one place.

A kernel's module must know it by the name ``cuda``: the simulator finds that global by its value and
swaps it while the kernel runs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any, cast

from seedflow.kernels.cuda.installation import check_installed

check_installed()
cuda: Any = importlib.import_module("numba.cuda")

with contextlib.suppress(ImportError):  # in case another release keeps it elsewhere
    # Small batches make small grids, of which Numba's own launch would warn.
    cast(Any, importlib.import_module("numba.cuda.core.config")).CUDA_LOW_OCCUPANCY_WARNINGS = 0

Function = Callable[..., Any]

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
"""Whether kernels run in Numba's simulator, on CPU tensors."""


def kernel(function: Function) -> Any:
    """Make a function a kernel; it compiles when it is first launched, and is kept where CPU kernels are.

    What runs is what the compile tests look at: one PTX module, assembled without link-time optimization.
    """
    if SIMULATED:
        return cuda.jit(function)
    try:
        return cuda.jit(function, lto=False, cache=True)
    except RuntimeError:  # Numba found no directory to write its cache to, of which the CPU kernels tell
        return cuda.jit(function, lto=False)


def device_function(function: Function) -> Function:
    """Make a function callable from kernels."""
    return cast(Function, cuda.jit(function, device=True))


__all__ = ["SIMULATED", "cuda", "device_function", "kernel"]

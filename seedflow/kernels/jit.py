"""Compiling CPU kernels with Numba, and the one primitive that Numba lacks: copying bytes.

Nothing is compiled at import: `cpu_kernel` gives no signature. Machine code is cached in
``NUMBA_CACHE_DIR``, else beside the module, else in the user's cache directory (Numba's own order).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
llvm = cast(Any, cgutils)  # untyped


def cpu_kernel(function: Function) -> Function:
    """Compile a function at its first call; it runs without the GIL, on the calling thread alone."""
    try:
        return cast(Function, njit(nogil=True, cache=True, error_model="numpy")(function))
    except RuntimeError as error:  # Numba found no directory to write its cache to
        logging.getLogger(__name__).warning(
            "%s is compiled anew in every process (%s): set NUMBA_CACHE_DIR to a writable directory",
            function.__name__,
            error,
        )
        return cast(Function, njit(nogil=True, error_model="numpy")(function))


def _copy_bytes(typing_context: Any, to: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between two addresses (int64) that do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.PointerType(ir.IntType(8))
        to, source, count = arguments
        to, source = builder.inttoptr(to, pointer), builder.inttoptr(source, pointer)
        llvm.raw_memcpy(builder, to, source, count, itemsize=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _zero_bytes(typing_context: Any, to: Any, count: Any) -> Any:
    """Set `count` bytes at an address (int64) to zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, count = arguments
        llvm.memset(builder, builder.inttoptr(to, ir.PointerType(ir.IntType(8))), count, 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


copy_bytes = cast(Callable[[int, int, int], None], intrinsic(_copy_bytes))
zero_bytes = cast(Callable[[int, int], None], intrinsic(_zero_bytes))


@cpu_kernel
def first_outside(index: np.ndarray, size: int) -> int:
    """Return the first position whose entry is not in ``range(size)``, or -1."""
    for i in range(index.shape[0]):
        if index[i] < 0 or index[i] >= size:
            return i
    return -1

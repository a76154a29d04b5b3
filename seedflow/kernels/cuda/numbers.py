"""What kernels share: constants in float32, exp with a bound, bfloat16 as bits, sums over blocks.

Numba takes a plain ``0.5`` for a float64, and one of these would widen all that it touches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seedflow.kernels.cuda.launcher import Grid
from seedflow.kernels.cuda.target import cuda, device_function

ZERO = np.float32(0.0)
HALF = np.float32(0.5)
ONE = np.float32(1.0)
LARGEST = np.float32(88.0)  # exp of more is beyond float32


def threads_for(wanted: int, most: int) -> int:
    """The power of two from `wanted` on, within 1 and `most`."""
    return min(most, 1 << (max(wanted, 1) - 1).bit_length())


def grid_of_one(blocks: int) -> tuple[Grid, Grid]:
    """One block that adds up what others left, or nothing at all: then the sums are zero."""
    return (1, 1, 1), (threads_for(blocks, 256), 1, 1)


@device_function
def bounded_exp(x: Any) -> Any:
    """exp, finite unless its argument is a NaN."""
    return math.exp(LARGEST if x > LARGEST else x)


@device_function
def from_bits(bits: Any, shift: Any) -> Any:
    """The float32 of the bits of a float32 (shift 0) or a bfloat16 (shift 16)."""
    return np.uint32(np.uint32(bits) << np.uint32(shift)).view(np.float32)


@device_function
def to_bits(x: Any, shift: Any) -> Any:
    """The bits of a float32 (shift 0), or of the bfloat16 nearest to it, to even (shift 16)."""
    bits = np.float32(x).view(np.uint32)
    if shift == 0:
        return bits
    if x != x:
        return np.uint32(0x7FC0)
    odd = np.uint32((bits >> np.uint32(16)) & np.uint32(1))
    return np.uint32(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@device_function
def add_up(parts: Any, kinds: int, thread: int, threads: int, columns: int) -> None:
    """Add up over the threads of a block.

    `parts` is a shared array ``[kinds, threads]``, written by its threads, which are a power of two.
    Afterwards its first `columns` entries of each kind hold the sums over the threads that have the same
    remainder by `columns`, also a power of two. The order is always the same, and so are the bits.
    """
    cuda.syncthreads()
    half = threads // 2
    while half >= columns:
        if thread < half:
            for kind in range(kinds):
                parts[kind, thread] += parts[kind, thread + half]
        cuda.syncthreads()
        half //= 2


@device_function
def add_up_blocks(sums: Any, parts: Any, kinds: int, thread: int, threads: int) -> None:
    """Add up what each block left in the vector ``[blocks, kinds]``, into the first column of `parts`."""
    for kind in range(kinds):
        part = 0.0
        for block in range(thread, sums.size // kinds, threads):
            part += sums[block * kinds + kind]
        parts[kind, thread] = part
    add_up(parts, kinds, thread, threads, 1)

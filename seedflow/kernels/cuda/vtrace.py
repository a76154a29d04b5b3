"""CUDA twin of `vtrace`: the scan over time in chunks, which run side by side.

A chunk of steps maps the error behind it to the error before it by ``e -> offset + factor * e``. Each
thread composes the map of its chunk; then it follows the maps of the chunks behind its own, which the
block shares, to the error that enters it, and goes through its steps once more to write them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.registry import register

COLUMNS = 32  # of a block, one warp
CHUNKS = 32  # at most
BUSY = 1 << 18  # threads that keep a large GPU busy
ZERO = np.float32(0.0)
ONE = np.float32(1.0)
LARGEST = np.float32(88.0)  # exp of more is beyond float32


def grid_of_columns(steps: int, columns: int) -> tuple[Grid, Grid]:
    """A warp takes 32 columns; as many chunks as the GPU has room for, of two steps or more."""
    chunks = min(CHUNKS, -(-steps // 2), -(-BUSY // max(columns, 1)))
    return (-(-columns // COLUMNS), 1, 1), (COLUMNS, max(chunks, 1), 1)


@device_function
def clipped_ratio(log_rho: Any) -> Any:
    """exp, finite unless the argument is a NaN."""
    return math.exp(LARGEST if log_rho > LARGEST else log_rho)


@kernel
def _scan(
    log_rhos: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray,
    masked: int,
    steps: int,
    columns: int,
    rho_bar: np.float32,
    c_bar: np.float32,
    pg_rho_bar: np.float32,
    trace_decay: np.float32,
    vs: np.ndarray,
    advantages: np.ndarray,
) -> None:
    offsets = cuda.shared.array((CHUNKS, COLUMNS), np.float32)
    factors = cuda.shared.array((CHUNKS, COLUMNS), np.float32)
    x, chunk, chunks = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.y
    column = cuda.blockIdx.x * COLUMNS + x
    length = (steps + chunks - 1) // chunks
    start = chunk * length
    stop = min(start + length, steps)

    offset, factor = ZERO, ONE
    if column < columns:
        for i in range(stop - start):
            at = (stop - 1 - i) * columns + column
            ratio = clipped_ratio(log_rhos[at])
            rho = rho_bar if ratio > rho_bar else ratio
            c = discounts[at] * trace_decay * (c_bar if ratio > c_bar else ratio)
            delta = rho * (rewards[at] + discounts[at] * values[at + columns] - values[at])
            if masked and not valid[at]:
                delta = ZERO
            if discounts[at] == ZERO:  # also where the ratio is a NaN
                offset, factor = delta, ZERO
            else:
                offset, factor = delta + c * offset, c * factor
    offsets[chunk, x] = offset
    factors[chunk, x] = factor
    cuda.syncthreads()

    if column >= columns:
        return
    error = ZERO
    for i in range(chunks - 1 - chunk):
        behind = chunks - 1 - i
        error = offsets[behind, x] + (factors[behind, x] * error if factors[behind, x] != ZERO else ZERO)
    for i in range(stop - start):
        at = (stop - 1 - i) * columns + column
        v_t, v_tp1, discount = values[at], values[at + columns], discounts[at]
        ratio = clipped_ratio(log_rhos[at])
        rho = rho_bar if ratio > rho_bar else ratio
        c = discount * trace_decay * (c_bar if ratio > c_bar else ratio)
        pg_rho = pg_rho_bar if ratio > pg_rho_bar else ratio
        delta = rho * (rewards[at] + discount * v_tp1 - v_t)
        advantage = pg_rho * (rewards[at] + discount * (v_tp1 + error) - v_t)
        if masked and not valid[at]:
            delta, advantage = ZERO, ZERO
        error = delta + (c * error if discount != ZERO else ZERO)
        vs[at] = v_t + error
        advantages[at] = advantage


scan = Kernel(
    "vtrace",
    _scan,
    ["float32[]"] * 4 + ["uint8[]"] + ["int32"] * 3 + ["float32"] * 4 + ["float32[]"] * 2,
    grid_of_columns,
    registers=64,
)


@register("vtrace", "cuda")
def _vtrace_cuda(
    log_rhos: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    vs: Tensor,
    advantages: Tensor,
) -> None:
    steps = log_rhos.shape[0]
    columns = math.prod(log_rhos.shape[1:])
    scan(
        log_rhos.device,
        (steps, columns),
        *vector(log_rhos),
        *vector(rewards),
        *vector(discounts),
        *vector(values),
        *vector(valid),
        valid is not None,
        steps,
        columns,
        rho_bar,
        c_bar,
        pg_rho_bar,
        trace_decay,
        *vector(vs),
        *vector(advantages),
    )

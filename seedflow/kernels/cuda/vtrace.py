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
from seedflow.kernels.cuda.numbers import ONE, ZERO, bounded_exp
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.registry import register

COLUMNS = 32  # of a block, one warp
CHUNKS = 32  # at most
BUSY = 1 << 18  # threads that keep a large GPU busy


def grid_of_columns(steps: int, columns: int) -> tuple[Grid, Grid]:
    """A warp takes 32 columns; as many chunks as the GPU has room for, of two steps or more."""
    chunks = min(CHUNKS, -(-steps // 2), -(-BUSY // max(columns, 1)))
    return (-(-columns // COLUMNS), 1, 1), (COLUMNS, max(chunks, 1), 1)


@device_function
def transition(
    ratio: Any,
    reward: Any,
    discount: Any,
    v_t: Any,
    v_tp1: Any,
    ok: bool,
    rho_bar: Any,
    c_bar: Any,
    trace_decay: Any,
) -> tuple[Any, Any]:
    """Return offset and factor of one step; the factor is zero where the trace ends, with a NaN too."""
    rho = rho_bar if ratio > rho_bar else ratio
    c = c_bar if ratio > c_bar else ratio
    delta = rho * (reward + discount * v_tp1 - v_t)
    return (delta if ok else ZERO), (discount * (trace_decay * c) if discount != ZERO else ZERO)


@device_function
def follow(offset: Any, factor: Any, error: Any) -> Any:
    """Apply a step's or chunk's map to an error."""
    return offset + factor * error if factor != ZERO else offset


@device_function
def entering_error(offsets: Any, factors: Any, column: int, chunk: int, chunks: int) -> Any:
    """Return the error that enters a chunk from those behind it."""
    error = ZERO
    for i in range(chunks - 1 - chunk):
        behind = chunks - 1 - i
        error = follow(offsets[behind, column], factors[behind, column], error)
    return error


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
    count = min(length, steps - start) if column < columns else 0

    offset, factor = ZERO, ONE
    for i in range(count):
        at = (start + count - 1 - i) * columns + column
        ratio = bounded_exp(log_rhos[at])
        ok = masked == 0 or valid[at] != 0
        delta, carry = transition(
            ratio,
            rewards[at],
            discounts[at],
            values[at],
            values[at + columns],
            ok,
            rho_bar,
            c_bar,
            trace_decay,
        )
        offset, factor = follow(delta, carry, offset), carry * factor
    offsets[chunk, x] = offset
    factors[chunk, x] = factor
    cuda.syncthreads()

    error = entering_error(offsets, factors, x, chunk, chunks)
    for i in range(count):
        at = (start + count - 1 - i) * columns + column
        v_t, v_tp1 = values[at], values[at + columns]
        ratio = bounded_exp(log_rhos[at])
        ok = masked == 0 or valid[at] != 0
        delta, carry = transition(
            ratio, rewards[at], discounts[at], v_t, v_tp1, ok, rho_bar, c_bar, trace_decay
        )
        pg_rho = pg_rho_bar if ratio > pg_rho_bar else ratio
        advantage = pg_rho * (rewards[at] + discounts[at] * (v_tp1 + error) - v_t)
        error = follow(delta, carry, error)
        vs[at] = v_t + error
        advantages[at] = advantage if ok else ZERO


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

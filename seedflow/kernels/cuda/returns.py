"""CUDA twins of `gae`, a scan in chunks as in `seedflow.kernels.cuda.vtrace`, and of `n_step`."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.numbers import ONE, ZERO
from seedflow.kernels.cuda.target import cuda, kernel
from seedflow.kernels.cuda.vtrace import CHUNKS, COLUMNS, entering_error, follow, grid_of_columns
from seedflow.kernels.registry import register


def grid_of_returns(size: int) -> tuple[Grid, Grid]:
    """A thread for every return."""
    return (-(-size // 256), 1, 1), (256, 1, 1)


@kernel
def _gae(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray,
    masked: int,
    steps: int,
    columns: int,
    trace_decay: np.float32,
    advantages: np.ndarray,
    returns: np.ndarray,
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
        delta = rewards[at] + discounts[at] * values[at + columns] - values[at]
        carry = discounts[at] * trace_decay
        delta = delta if masked == 0 or valid[at] != 0 else ZERO
        offset, factor = follow(delta, carry, offset), carry * factor
    offsets[chunk, x] = offset
    factors[chunk, x] = factor
    cuda.syncthreads()

    advantage = entering_error(offsets, factors, x, chunk, chunks)
    for i in range(count):
        at = (start + count - 1 - i) * columns + column
        v_t = values[at]
        delta = rewards[at] + discounts[at] * values[at + columns] - v_t
        delta = delta if masked == 0 or valid[at] != 0 else ZERO
        advantage = follow(delta, discounts[at] * trace_decay, advantage)
        advantages[at] = advantage
        returns[at] = advantage + v_t


@kernel
def _n_step(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray,
    masked: int,
    steps: int,
    columns: int,
    n: int,
    returns: np.ndarray,
) -> None:
    at = cuda.grid(1)
    if at >= steps * columns:
        return
    reach = min(n, steps - at // columns)
    result = values[at + reach * columns]
    for i in range(reach):
        j = at + (reach - 1 - i) * columns
        if masked == 0 or valid[j] != 0:
            result = follow(rewards[j], discounts[j], result)
        else:
            result = values[j]
    returns[at] = result


scan = Kernel(
    "gae",
    _gae,
    [
        *["float32[]"] * 3,
        "uint8[]",
        *["int32"] * 3,
        "float32",
        *["float32[]"] * 2,
    ],
    grid_of_columns,
    registers=64,
)
sum_up = Kernel(
    "n_step",
    _n_step,
    [*["float32[]"] * 3, "uint8[]", *["int32"] * 4, "float32[]"],
    grid_of_returns,
    registers=48,
)


@register("gae", "cuda")
def _gae_cuda(
    rewards: Tensor,
    discounts: Tensor,
    values: Tensor,
    valid: Tensor | None,
    trace_decay: float,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    steps, columns = rewards.shape[0], math.prod(rewards.shape[1:])
    scan(
        rewards.device,
        (steps, columns),
        *vector(rewards),
        *vector(discounts),
        *vector(values),
        *vector(valid),
        valid is not None,
        steps,
        columns,
        trace_decay,
        *vector(advantages),
        *vector(returns),
    )


@register("n_step", "cuda")
def _n_step_cuda(
    rewards: Tensor, discounts: Tensor, values: Tensor, valid: Tensor | None, n: int, returns: Tensor
) -> None:
    steps, columns = rewards.shape[0], math.prod(rewards.shape[1:])
    sum_up(
        rewards.device,
        (steps * columns,),
        *vector(rewards),
        *vector(discounts),
        *vector(values),
        *vector(valid),
        valid is not None,
        steps,
        columns,
        min(n, steps),
        *vector(returns),
    )

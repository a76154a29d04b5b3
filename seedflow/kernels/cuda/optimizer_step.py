"""CUDA twins of `rmsprop_step` and `adam_step`: two launches each.

The first leaves a sum of squares for every block. In the second each block adds these up for itself, always
in the same order, to the gradient's norm, and goes on to update its share of the parameters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.numbers import ONE, ZERO, add_up, add_up_blocks
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.registry import register

THREADS = 256
BLOCKS = 1024  # at most: what a large GPU has room for
TINY = np.float32(1e-6)


def grid_of_numbers(size: int) -> tuple[Grid, Grid]:
    """A thread for every number, or for every n-th where the GPU is full; one block for none at all."""
    return (min(BLOCKS, max(1, -(-size // THREADS))), 1, 1), (THREADS, 1, 1)


@kernel
def _sum_squares(gradient: np.ndarray, sums: np.ndarray) -> None:
    parts = cuda.shared.array((1, THREADS), np.float64)
    thread = cuda.threadIdx.x
    total = ZERO
    for i in range(cuda.grid(1), gradient.size, cuda.gridsize(1)):
        total += gradient[i] * gradient[i]
    parts[0, thread] = total
    add_up(parts, 1, thread, THREADS, 1)
    if thread == 0:
        sums[cuda.blockIdx.x] = parts[0, 0]


@device_function
def scale_of(sums: Any, parts: Any, clip_norm: Any, norm: Any) -> Any:
    """Return what gradients are scaled by; the first block writes the norm."""
    thread = cuda.threadIdx.x
    add_up_blocks(sums, parts, 1, thread, THREADS)
    size = np.float32(math.sqrt(parts[0, 0]))
    if thread == 0 and cuda.blockIdx.x == 0:
        norm[0] = size
    factor = clip_norm / (size + TINY)
    return ONE if factor > ONE else factor  # a NaN stays one


@kernel
def _rmsprop(
    parameter: np.ndarray,
    gradient: np.ndarray,
    square_average: np.ndarray,
    sums: np.ndarray,
    clip_norm: np.float32,
    rate: np.float32,
    decay: np.float32,
    rest: np.float32,
    epsilon: np.float32,
    norm: np.ndarray,
) -> None:
    parts = cuda.shared.array((1, THREADS), np.float64)
    scale = scale_of(sums, parts, clip_norm, norm)
    for i in range(cuda.grid(1), parameter.size, cuda.gridsize(1)):
        g = gradient[i] * scale
        square = square_average[i] * decay + g * g * rest
        square_average[i] = square
        parameter[i] -= rate * (g / (math.sqrt(square) + epsilon))


@kernel
def _adam(
    parameter: np.ndarray,
    gradient: np.ndarray,
    average: np.ndarray,
    square_average: np.ndarray,
    sums: np.ndarray,
    clip_norm: np.float32,
    rate: np.float32,
    beta_1: np.float32,
    rest_1: np.float32,
    beta_2: np.float32,
    rest_2: np.float32,
    root: np.float32,
    epsilon: np.float32,
    norm: np.ndarray,
) -> None:
    parts = cuda.shared.array((1, THREADS), np.float64)
    scale = scale_of(sums, parts, clip_norm, norm)
    for i in range(cuda.grid(1), parameter.size, cuda.gridsize(1)):
        g = gradient[i] * scale
        mean = average[i] * beta_1 + g * rest_1
        square = square_average[i] * beta_2 + g * g * rest_2
        average[i] = mean
        square_average[i] = square
        parameter[i] -= rate * (mean / (math.sqrt(square) * root + epsilon))


sum_squares = {
    operation: Kernel(
        operation,
        _sum_squares,
        ["float32[]", "float64[]"],
        grid_of_numbers,
        registers=40,
        double=True,
    )
    for operation in ("rmsprop_step", "adam_step")
}
rmsprop = Kernel(
    "rmsprop_step",
    _rmsprop,
    [*["float32[]"] * 3, "float64[]", *["float32"] * 5, "float32[]"],
    grid_of_numbers,
    registers=64,
    double=True,
)
adam = Kernel(
    "adam_step",
    _adam,
    [*["float32[]"] * 4, "float64[]", *["float32"] * 8, "float32[]"],
    grid_of_numbers,
    registers=64,
    double=True,
)


def _squares(operation: str, gradient: Tensor) -> Tensor:
    """Launch the first half; returns where it leaves its sums."""
    size = gradient.numel()
    (blocks, _, _), _ = grid_of_numbers(size)
    sums = torch.empty(blocks, dtype=torch.float64, device=gradient.device)
    sum_squares[operation](gradient.device, (size,), *vector(gradient), *vector(sums))
    return sums


@register("rmsprop_step", "cuda")
def _rmsprop_cuda(
    parameter: Tensor,
    gradient: Tensor,
    square_average: Tensor,
    learning_rate: float,
    decay: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    sums = _squares("rmsprop_step", gradient)
    rmsprop(
        parameter.device,
        (parameter.numel(),),
        *vector(parameter),
        *vector(gradient),
        *vector(square_average),
        *vector(sums),
        clip_norm,
        learning_rate,
        decay,
        1.0 - decay,
        epsilon,
        *vector(norm),
    )


@register("adam_step", "cuda")
def _adam_cuda(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    square_average: Tensor,
    step: int,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    sums = _squares("adam_step", gradient)
    adam(
        parameter.device,
        (parameter.numel(),),
        *vector(parameter),
        *vector(gradient),
        *vector(average),
        *vector(square_average),
        *vector(sums),
        clip_norm,
        learning_rate / (1.0 - beta_1**step),
        beta_1,
        1.0 - beta_1,
        beta_2,
        1.0 - beta_2,
        1.0 / math.sqrt(1.0 - beta_2**step),
        epsilon,
        *vector(norm),
    )

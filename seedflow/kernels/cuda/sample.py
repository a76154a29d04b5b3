"""CUDA twin of `sample_categorical`: a thread for every distribution."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.numbers import ZERO, bounded_exp, from_bits
from seedflow.kernels.cuda.softmax import LOWEST, softmax_of
from seedflow.kernels.cuda.target import cuda, kernel
from seedflow.kernels.registry import register

NEVER = np.float32(-1.0)


def grid_of_rows(rows: int) -> tuple[Grid, Grid]:
    """Small blocks, so that a batch spreads over the GPU."""
    return (-(-rows // 32), 1, 1), (32, 1, 1)


@kernel
def _sample(
    logits: np.ndarray,
    uniform: np.ndarray,
    width: int,
    action: np.ndarray,
    log_prob: np.ndarray,
    entropy: np.ndarray,
) -> None:
    row = cuda.grid(1)
    if row >= action.size:
        return
    start = row * width
    top, log_total, row_entropy = softmax_of(logits, start, start + width, 0)
    best, chosen, chosen_x = NEVER, 0, ZERO
    for a in range(width):
        x = from_bits(logits[start + a], 0) - top
        if not x <= LOWEST:
            u = uniform[start + a]
            score = bounded_exp(x) / -math.log(u) if u > ZERO else ZERO  # a clock that never rings
            if score > best:
                best, chosen, chosen_x = score, a, x
    action[row] = chosen
    log_prob[row] = chosen_x - log_total
    entropy[row] = row_entropy


sample = Kernel(
    "sample_categorical",
    _sample,
    ["uint32[]", "float32[]", "int32", "int64[]", "float32[]", "float32[]"],
    grid_of_rows,
    registers=64,
)


@register("sample_categorical", "cuda")
def _sample_cuda(logits: Tensor, uniform: Tensor, action: Tensor, log_prob: Tensor, entropy: Tensor) -> None:
    sample(
        logits.device,
        (action.numel(),),
        *vector(logits),
        *vector(uniform),
        logits.shape[-1],
        *vector(action),
        *vector(log_prob),
        *vector(entropy),
    )

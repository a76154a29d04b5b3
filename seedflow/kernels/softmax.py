"""Softmax over the actions of many rows at once, for the CPU kernels.

Rows have few actions and are many, so they are worked through in tiles, transposed to ``[A, columns]``
with a column for each row: every loop over columns is then one that the compiler vectorizes.
"""

from __future__ import annotations

import numpy as np

from seedflow.kernels.elementary import exp, load, log
from seedflow.kernels.jit import cpu_kernel

TILE = 64
"""Columns of a tile: what it needs stays in the first-level cache."""


@cpu_kernel
def transpose(rows: np.ndarray, columns: np.ndarray) -> None:
    """Copy logits [n, A], also as bits of bfloat16, to [A, n] in the precision that is calculated with."""
    for b in range(rows.shape[0]):
        for a in range(rows.shape[1]):
            columns[a, b] = load(rows[b, a])


@cpu_kernel
def softmax(
    shifted: np.ndarray,
    weight: np.ndarray,
    top: np.ndarray,
    log_total: np.ndarray,
    inverse: np.ndarray,
    entropy: np.ndarray,
    n: int,
) -> None:
    """Turn n columns of logits into what a softmax is made of.

    Parameters
    ----------
    shifted
        Logits ``[A, >= n]``; afterwards their distance to the largest one, at least -87.
    weight
        Afterwards exp of that, 0 where an action is impossible; times `inverse` it is the probability.
    top, log_total, inverse, entropy
        Afterwards the largest logit, log and inverse of the sum of weights, and the entropy ``[>= n]``.
    n
        How many columns there are.
    """
    real = weight.dtype.type
    floor, zero = real(-87.0), real(0.0)
    for b in range(n):
        top[b] = shifted[0, b]
    for a in range(1, shifted.shape[0]):
        for b in range(n):
            top[b] = shifted[a, b] if shifted[a, b] > top[b] else top[b]
    for b in range(n):
        inverse[b] = zero
        entropy[b] = zero
    for a in range(shifted.shape[0]):
        shifted_a, weight_a = shifted[a], weight[a]
        for b in range(n):
            x = shifted_a[b] - top[b]
            e = exp(x)
            x = floor if x < floor else x
            e = zero if x <= floor else e
            shifted_a[b] = x
            weight_a[b] = e
            inverse[b] += e
            entropy[b] += e * x
    for b in range(n):
        inverse_b = real(1.0) / inverse[b]
        log_total_b = log(inverse[b])
        log_total[b] = log_total_b
        inverse[b] = inverse_b
        entropy[b] = log_total_b - entropy[b] * inverse_b

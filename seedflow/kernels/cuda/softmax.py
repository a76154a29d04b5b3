"""Softmax of one row of logits by one thread, for the kernels of policies.

Logits come as the bits of float32 or bfloat16 numbers, see `seedflow.kernels.cuda.numbers.from_bits`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seedflow.kernels.cuda.numbers import ZERO, bounded_exp, from_bits
from seedflow.kernels.cuda.target import device_function

LOWEST = np.float32(-87.0)  # exp of less is nearly nothing; also in place of an impossible action's -inf


@device_function
def softmax_of(logits: np.ndarray, start: int, stop: int, shift: int) -> tuple[Any, Any, Any]:
    """Return the largest of a row's logits, and log of the sum and entropy of its softmax."""
    top = from_bits(logits[start], shift)
    for i in range(start + 1, stop):
        logit = from_bits(logits[i], shift)
        top = logit if logit > top else top
    total, weighted = ZERO, ZERO
    for i in range(start, stop):
        x = from_bits(logits[i], shift) - top
        if not x <= LOWEST:  # also a NaN
            weight = bounded_exp(x)
            total += weight
            weighted += weight * x
    log_total = math.log(total)
    return top, log_total, log_total - weighted / total

"""Elementary functions for the CPU kernels, in the precision of their argument.

In float32 they are polynomials: a library call is one call a number, while the compiler turns a loop over
these into vector instructions. In float64, which only tests use, they are the library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from seedflow.kernels.jit import cpu_kernel


def exp(x: Any) -> Any:
    """Compute exp; float32: within 1e-7 relative, beyond [-87, 88] the bound's."""
    return np.exp(x)


def log(x: Any) -> Any:
    """Compute the natural logarithm; float32: within 1e-7 relative, for 0 that of 1e-45."""
    return np.log(x)


def load(x: Any) -> Any:
    """Return a number to calculate with; uint16 holds the bits of a bfloat16."""
    return x


def store(x: Any, like: Any) -> Any:
    """Return a number to keep beside `like`; uint16 takes the bits of a bfloat16, rounded to nearest even."""
    return x


@cpu_kernel
def exp32(x: np.float32) -> np.float32:
    """exp(x) = 2^n exp(r) with r = x - n log 2 in [-log 2 / 2, log 2 / 2]; coefficients of Cephes' expf."""
    bounded = x if x > np.float32(-87.0) else np.float32(-87.0)
    bounded = bounded if bounded < np.float32(88.0) else np.float32(88.0)
    n = np.floor(bounded * np.float32(1.44269504) + np.float32(0.5))
    r = bounded - n * np.float32(0.693359375)  # log 2 in two parts, the first one exact
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + np.float32(1.0)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return x if x != x else p * power


@cpu_kernel
def log32(x: np.float32) -> np.float32:
    """log(x) = n log 2 + log(m) with m in [sqrt(1/2), sqrt(2)]; coefficients of Cephes' logf."""
    tiny = x < np.float32(1.17549435e-38)  # denormals have no exponent of their own
    scaled = np.float32(x * np.float32(8388608.0) if tiny else x)
    bits = np.int32(scaled.view(np.int32) - np.int32(0x3F3504F3))  # of sqrt(1/2)
    n = np.float32(np.int32(bits >> np.int32(23))) - (np.float32(23.0) if tiny else np.float32(0.0))
    r = np.int32((bits & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)).view(np.float32) - np.float32(1.0)
    p = np.float32(7.0376836292e-2)
    p = p * r + np.float32(-1.1514610310e-1)
    p = p * r + np.float32(1.1676998740e-1)
    p = p * r + np.float32(-1.2420140846e-1)
    p = p * r + np.float32(1.4249322787e-1)
    p = p * r + np.float32(-1.6668057665e-1)
    p = p * r + np.float32(2.0000714765e-1)
    p = p * r + np.float32(-2.4999993993e-1)
    p = p * r + np.float32(3.3333331174e-1)
    square = r * r
    p = p * r * square + n * np.float32(-2.12194440e-4) - np.float32(0.5) * square
    result = r + p + n * np.float32(0.693359375)
    result = result if x > np.float32(0.0) else np.float32(-np.inf)
    result = result if x < np.float32(np.inf) else x  # also a NaN
    return result


@overload(exp, strict=False)
def _exp(x: Any) -> Callable[..., Any]:
    if x == types.float32:
        return lambda x: exp32(x)
    return lambda x: math.exp(x)


@overload(log, strict=False)
def _log(x: Any) -> Callable[..., Any]:
    if x == types.float32:
        return lambda x: log32(x)
    return lambda x: math.log(x)


@overload(load, strict=False)
def _load(x: Any) -> Callable[..., Any]:
    if x == types.uint16:
        return lambda x: np.uint32(np.uint32(x) << np.uint32(16)).view(np.float32)
    return lambda x: x


@overload(store, strict=False)
def _store(x: Any, like: Any) -> Callable[..., Any]:
    if like == types.uint16:
        return lambda x, like: bfloat16_bits(x)
    return lambda x, like: x


@cpu_kernel
def bfloat16_bits(x: np.float32) -> np.uint16:
    """Return the upper half of a float32's bits, rounded to nearest even."""
    bits = np.float32(x).view(np.uint32)
    rounded = np.uint32(bits + np.uint32(0x7FFF) + np.uint32((bits >> np.uint32(16)) & np.uint32(1)))
    return np.uint16((rounded if x == x else np.uint32(0x7FC00000)) >> np.uint32(16))

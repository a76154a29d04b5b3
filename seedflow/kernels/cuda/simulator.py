"""Launching in Numba's CUDA simulator: every GPU thread is a Python thread, every tensor is in memory.

Slow, and only for tests and debugging: start Python with ``NUMBA_ENABLE_CUDASIM=1`` and use CPU tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from seedflow.kernels.cuda.arguments import Array, Parameter, decode

Dimensions = tuple[int, int, int]


class SimulatedLaunch:
    """Launch in the simulator, on arrays that share the tensors' memory."""

    def __init__(self, function: Any, parameters: Sequence[Parameter]) -> None:
        self._function = function
        self._parameters = parameters

    def __call__(self, grid: Dimensions, block: Dimensions, stream: int, arguments: Sequence[float]) -> None:
        self._function[grid, block](*map(_simulated, decode(self._parameters, arguments)))


class CheckedArray:
    """An array as a kernel sees it; an index out of range is an error, a negative one too."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape
        self.size = array.size

    def __getitem__(self, index: Any) -> Any:
        return self._array[self._checked(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[self._checked(index)] = value

    def _checked(self, index: Any) -> Any:
        whole = index if isinstance(index, tuple) else (index,)
        if len(whole) != self._array.ndim or any(i < 0 for i in whole):
            raise IndexError(f"index {index} into an array of shape {self.shape}")
        return index


def _simulated(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_simulated(item) for item in value)
    if not isinstance(value, Array):
        return value
    memory = memoryview((ctypes.c_char * value.extent).from_address(value.address) if value.extent else b"")
    return CheckedArray(np.ndarray(value.shape, value.dtype, memory, strides=value.strides))

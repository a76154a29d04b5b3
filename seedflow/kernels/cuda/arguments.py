"""What a kernel takes, as plain numbers: the form in which a driver gets it.

A signature is a tuple of strings, one a parameter:

================  ============================================================================
``"float32"``     a scalar: int32, int64, float32 or float64
``"float32[]"``   a vector; any contiguous tensor counts as one
``"uint8[:,:]"``  an array of two axes with any strides, three with ``[:,:,:]``
``"8 int64[:,:]"``  a tuple of eight of these
================  ============================================================================

An array travels as ``0, 0, items, item size, address, *shape, *strides``, where the zeros stand for
Numba's owner of the memory, sizes are in items and strides in bytes. `vector`, `rows` and `unrolls`
make these numbers from tensors at little cost; a launcher that needs arrays gets them back by `decode`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

Numbers = tuple[float, ...]

SCALARS = {"int32": "i4x", "int64": "q", "float32": "f4x", "float64": "d"}
ABSENT: Numbers = (0, 0, 0, 1, 0, 0, 1)
"""A vector without items, for an argument that was not given."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: a scalar (rank 0) or an array, or a tuple of `count` of them."""

    dtype: str
    rank: int = 0
    strided: bool = False
    count: int | None = None

    @property
    def slots(self) -> int:
        """How many numbers it takes."""
        return (self.count or 1) * (5 + 2 * self.rank if self.rank else 1)

    @property
    def format(self) -> str:
        """Its numbers in the language of `struct`, eight bytes each."""
        one = "QQqqQ" + "q" * (2 * self.rank) if self.rank else SCALARS[self.dtype]
        return one * (self.count or 1)


@dataclass(frozen=True)
class Array:
    """An array that is described by numbers; it does not own its memory."""

    dtype: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    strided: bool = False

    @property
    def extent(self) -> int:
        """How many bytes it spans."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        return last + np.dtype(self.dtype).itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self.strides if self.strided else None,  # by which Numba tells layouts apart
            "typestr": np.dtype(self.dtype).str,
            "data": (self.address, False),
            "version": 3,
        }


def parse(signature: Sequence[str]) -> tuple[Parameter, ...]:
    """Read a signature."""
    return tuple(_parse(text) for text in signature)


def vector(tensor: Tensor | None) -> Numbers:
    """Describe a contiguous tensor of any shape as a vector; None gives an empty one."""
    if tensor is None:
        return ABSENT
    items, size = tensor.numel(), tensor.element_size()
    return (0, 0, items, size, tensor.data_ptr(), items, size)


def rows(tensor: Tensor, word: int) -> Numbers:
    """Describe ``[N, ...]`` as N rows of words of `word` bytes."""
    size = tensor.element_size()
    count, stride = tensor.shape[0], tensor.stride(0) * size
    words = math.prod(tensor.shape[1:]) * size // word
    return (0, 0, count * words, word, tensor.data_ptr(), count, words, stride, word)


def unrolls(tensor: Tensor, word: int) -> Numbers:
    """Describe ``[N, T, ...]`` as N times T rows of words of `word` bytes."""
    size = tensor.element_size()
    (count, steps), (stride, step) = tensor.shape[:2], tensor.stride()[:2]
    words = math.prod(tensor.shape[2:]) * size // word
    address = tensor.data_ptr()
    return (0, 0, count * steps * words, word, address, count, steps, words, stride * size, step * size, word)


def decode(parameters: Sequence[Parameter], numbers: Sequence[float]) -> list[Any]:
    """Turn numbers back into numpy scalars, `Array` objects and tuples of these.

    Raises
    ------
    ValueError
        When the numbers do not fit the signature.
    """
    expected = sum(parameter.slots for parameter in parameters)
    if len(numbers) != expected:
        raise ValueError(f"{len(numbers)} numbers for a signature that takes {expected}")
    rest = iter(numbers)
    return [_decode(parameter, rest) for parameter in parameters]


def _decode(parameter: Parameter, numbers: Iterator[float]) -> Any:
    values = tuple(_decode_one(parameter, numbers) for _ in range(parameter.count or 1))
    return values if parameter.count else values[0]


def _decode_one(parameter: Parameter, numbers: Iterator[float]) -> Any:
    if parameter.rank == 0:
        return np.dtype(parameter.dtype).type(next(numbers))
    head = [int(next(numbers)) for _ in range(5)]
    shape = tuple(int(next(numbers)) for _ in range(parameter.rank))
    strides = tuple(int(next(numbers)) for _ in range(parameter.rank))
    owner, parent, items, size, address = head
    array = Array(parameter.dtype, address, shape, strides, parameter.strided)
    if owner or parent or items != math.prod(shape):
        raise ValueError(f"{head} does not describe an array of shape {shape}")
    if items and size != np.dtype(parameter.dtype).itemsize:
        raise ValueError(f"items of {size} bytes at {address:#x}, expected {parameter.dtype}")
    return array


def _parse(text: str) -> Parameter:
    match = re.fullmatch(r"(?:(?P<count>\d+) )?(?P<dtype>[a-z]\w+)(?P<axes>\[[:,]*\])?", text)
    if match is None:
        raise ValueError(f"{text!r} is no parameter of a kernel")
    count, dtype, axes = match.group("count", "dtype", "axes")
    rank = 1 + axes.count(",") if axes else 0
    return Parameter(dtype, rank, rank > 0 and axes != "[]", int(count) if count else None)

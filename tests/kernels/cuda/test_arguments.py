"""Tensors become plain numbers and come back as the same arrays."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest
import torch

from seedflow.kernels.cuda.arguments import (
    ABSENT,
    Array,
    Numbers,
    Parameter,
    decode,
    parse,
    rows,
    unrolls,
    vector,
)


def test_a_signature_is_read() -> None:
    assert parse(["float32", "float64[]", "uint8[:,:]", "8 int64[:,:,:]", "8 int32"]) == (
        Parameter("float32"),
        Parameter("float64", 1),
        Parameter("uint8", 2, strided=True),
        Parameter("int64", 3, strided=True, count=8),
        Parameter("int32", count=8),
    )


@pytest.mark.parametrize("text", ["float32[", "8float32", "", "2 x float32"])
def test_what_is_no_parameter_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no parameter of a kernel"):
        parse([text])


def test_formats_take_eight_bytes_a_number() -> None:
    for parameter in parse(
        ["float32", "int32", "int64", "float64", "float32[]", "uint8[:,:]", "3 int64[:,:]"]
    ):
        assert struct.calcsize("=" + parameter.format) == 8 * parameter.slots


def test_scalars_come_back_in_their_types() -> None:
    values = decode(parse(["int32", "int64", "float32", "float64"]), (1, 2**40, 0.1, 0.1))
    assert values == [1, 2**40, np.float32(0.1), 0.1]
    assert [value.dtype for value in values] == [np.int32, np.int64, np.float32, np.float64]


def content(array: Array) -> np.ndarray:
    """Read the memory that an array describes."""
    memory = (ctypes.c_char * array.extent).from_address(array.address)
    return np.ndarray(array.shape, array.dtype, memory, strides=array.strides)


def one(signature: str, numbers: Numbers) -> Array:
    (array,) = decode(parse([signature]), numbers)
    assert isinstance(array, Array)
    return array


def test_a_vector_has_all_items_of_a_tensor() -> None:
    tensor = torch.arange(12.0).reshape(3, 2, 2)
    np.testing.assert_array_equal(content(one("float32[]", vector(tensor))), np.arange(12.0))


def test_a_missing_vector_is_empty() -> None:
    assert vector(None) == ABSENT
    assert one("uint8[]", vector(None)).shape == (0,)
    assert one("float32[]", vector(torch.empty(0, 3))).extent == 0


def test_rows_are_words_of_what_lies_behind_the_first_axis() -> None:
    memory = torch.arange(6 * 10, dtype=torch.int32).reshape(6, 10)
    tensor = memory[1::2, 2:6]
    words = content(one("int64[:,:]", rows(tensor, 8)))
    np.testing.assert_array_equal(words.view(np.int32), tensor.numpy())
    single = content(one("uint8[:,:]", rows(tensor, 1)))
    np.testing.assert_array_equal(single.view(np.int32), tensor.numpy())


def test_unrolls_have_two_axes_before_the_words() -> None:
    memory = torch.arange(5 * 8 * 4, dtype=torch.int16).reshape(5, 8, 4)
    tensor = memory[1::2, ::3]
    words = content(one("int64[:,:,:]", unrolls(tensor, 8)))
    assert words.shape == (2, 3, 1)
    np.testing.assert_array_equal(words.view(np.int16), tensor.numpy())


def test_a_tuple_comes_back_as_one() -> None:
    tensors = [torch.full((2, 3), float(i)) for i in range(3)]
    numbers = [number for tensor in tensors for number in rows(tensor, 4)]
    (arrays,) = decode(parse(["3 float32[:,:]"]), numbers)
    for array, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_array_equal(content(array), tensor.numpy())
    assert decode(parse(["3 int32"]), (4, 5, 6)) == [(4, 5, 6)]


def test_numbers_that_do_not_fit_a_signature_are_refused() -> None:
    numbers = vector(torch.zeros(3))
    with pytest.raises(ValueError, match="7 numbers for a signature that takes 8"):
        decode(parse(["float32[]", "int32"]), numbers)
    with pytest.raises(ValueError, match=r"items of 4 bytes at 0x[0-9a-f]+, expected float64"):
        decode(parse(["float64[]"]), numbers)
    with pytest.raises(ValueError, match="does not describe an array of shape"):
        decode(parse(["float32[]"]), (0, 0, 4, *numbers[3:]))


def test_numba_tells_layouts_apart_by_strides() -> None:
    """A contiguous vector has none to give, an array declared as strided always gives them."""
    tensor = torch.zeros(4, 2)
    assert one("float32[]", vector(tensor)).__cuda_array_interface__["strides"] is None
    assert one("float32[:,:]", rows(tensor, 4)).__cuda_array_interface__["strides"] == (8, 4)

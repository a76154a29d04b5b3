"""Other libraries' arrays and tensors share their memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.errors import SpecError
from seedflow.kernels.cuda.interop import as_cupy, as_tensor


def test_a_tensor_is_itself() -> None:
    tensor = torch.zeros(3)
    assert as_tensor(tensor) is tensor


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_what_speaks_dlpack_shares_its_memory(dtype: str) -> None:
    array = np.zeros((2, 3), dtype)
    tensor = as_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.shape == (2, 3)
    tensor[1, 2] = 1
    assert array[1, 2] == 1


class OnDevice:
    """An array that only has an address on a GPU."""

    def __init__(self, stream: int | None) -> None:
        self.__cuda_array_interface__ = {"shape": (3,), "version": 3, "stream": stream}


@pytest.mark.parametrize(("stream", "waited_for"), [(None, []), (1, [0]), (2, [2]), (0x5EED, [0x5EED])])
def test_torch_waits_for_the_stream_of_an_array(
    stream: int | None, waited_for: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = torch.zeros(3)
    waits: list[Any] = []
    current = SimpleNamespace(wait_stream=waits.append)
    monkeypatch.setattr(torch, "as_tensor", lambda array: shared)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address, device: address)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    assert as_tensor(OnDevice(stream)) is shared
    assert waits == waited_for


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(SpecError, match="array is list: expected something that has __dlpack__"):
        as_tensor([1.0, 2.0])


def test_cupy_gets_the_tensor_without_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(from_dlpack=np.from_dlpack))
    tensor = torch.zeros(3, requires_grad=True)
    array = as_cupy(tensor)
    array[1] = 5.0
    assert tensor.tolist() == [0.0, 5.0, 0.0]

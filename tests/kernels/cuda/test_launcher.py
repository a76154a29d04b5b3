"""The packed launcher hands the driver what Numba's own launch would, on torch's stream, and no more."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .toolkit import need_toolkit, ptx_of, widths_of_parameters

need_toolkit()

from cuda.bindings import driver as real_driver
from cuda.core._kernel_arg_handler import ParamHolder
from numba import cuda
from numba.cuda import dispatcher
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.cudadrv.driver import CudaPythonFunction
from numba.cuda.dispatcher import _Kernel

from seedflow import kernels
from seedflow.errors import SpecError
from seedflow.kernels import registry
from seedflow.kernels.cuda import launcher, twins  # noqa: F401
from seedflow.kernels.cuda.arguments import Array, decode, parse
from seedflow.kernels.cuda.launcher import KERNELS, Kernel, NumbaLaunch, PackedLaunch
from tests.kernels.cases import CASES, Case, run

HOPPER = (9, 0)
STREAM = 0x5EED
SUCCESS = real_driver.CUresult.CUDA_SUCCESS
CALLS = ("cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGet", "cuDevicePrimaryCtxRetain")


class FakeDriver:
    """Records launches: what the driver would read at each parameter's address, and all else."""

    def __init__(self, widths: Sequence[int], context: int = 1) -> None:
        self.widths = widths
        self.context = context
        self.launches: list[tuple[list[bytes], tuple[int, ...]]] = []
        self.calls: list[str] = []
        self.result = SUCCESS

    def cuLaunchKernel(self, handle: int, *rest: int) -> tuple[Any]:
        *where, pointers, extra = rest
        assert extra == 0
        self.calls.append("cuLaunchKernel")
        self.launches.append((read_parameters(pointers, self.widths), (handle, *where)))
        return (self.result,)

    def cuCtxGetCurrent(self) -> tuple[Any, int]:
        self.calls.append("cuCtxGetCurrent")
        return SUCCESS, self.context

    def cuDeviceGet(self, index: int) -> tuple[Any, int]:
        self.calls.append(f"cuDeviceGet {index}")
        return SUCCESS, 70 + index

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, int]:
        self.calls.append(f"cuDevicePrimaryCtxRetain {device}")
        return SUCCESS, 900 + device

    def cuCtxSetCurrent(self, context: int) -> tuple[Any]:
        self.calls.append(f"cuCtxSetCurrent {context}")
        return (SUCCESS,)


def read_parameters(pointers: int, widths: Sequence[int]) -> list[bytes]:
    """Read each parameter where a table of pointers says it is."""
    table = (ctypes.c_void_p * len(widths)).from_address(pointers)
    return [ctypes.string_at(pointer or 0, width) for pointer, width in zip(table, widths, strict=True)]


def numbas_parameters(kernel: Kernel, arguments: Sequence[float], widths: Sequence[int]) -> list[bytes]:
    """Prepare the arguments as Numba's own launch does, to the bytes that it hands to the driver."""
    compiled = object.__new__(_Kernel)
    compiled.extensions = []
    prepared: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "wrap_arg", lambda array: SimpleNamespace(to_device=on_device(array)))
        for numba_type, value in zip(kernel.types(), decode(kernel.parameters, arguments), strict=True):
            compiled._prepare_args(numba_type, value, 0, [], prepared)
    assert len(prepared) == len(widths)
    holder = ParamHolder(prepared)
    return read_parameters(holder.ptr, widths)


def on_device(array: Array) -> Callable[..., Any]:
    """What Numba turns a tensor into, which takes a driver: the array with its layout."""
    view = SimpleNamespace(
        size=math.prod(array.shape),
        dtype=np.dtype(array.dtype) if array.extent else np.dtype(np.uint8),  # of nothing, it does not matter
        ptr=array.address,
        shape=array.shape,
        _layout=SimpleNamespace(strides_in_bytes=array.strides),
    )
    return lambda writeback, stream: view


class NoTorch(TorchDispatchMode):
    """Refuses torch's operations, all that launch something or could wait for a GPU.

    Taking scratch memory from torch is none of these: its allocator hands it out in stream order.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.empty.memory_format:
            return function(*args, **(kwargs or {}))
        raise AssertionError(f"{function} in a launch")


@contextmanager
def launching_with(operation: str, make: Callable[[Kernel], Any]) -> Iterator[None]:
    """Let an operation's CUDA twin work on CPU tensors, with launches of our own making."""
    made = {kernel.name: make(kernel) for kernel in KERNELS}
    with pytest.MonkeyPatch.context() as patch:
        for kernel in KERNELS:
            patch.setattr(kernel, "_launches", {None: made[kernel.name]})
        patch.setitem(registry._twins[operation], "cpu", registry.twins(operation)["cuda"])
        patch.setattr(torch.cuda, "current_device", lambda: None)
        patch.setattr(launcher, "_raw_stream", lambda index: STREAM)
        yield


def with_kernels() -> list[Case]:
    """Cases that launch something, one for each operation and layout."""
    return [case for case in CASES if case.name in ("plain", "all valid", "every dtype", "rows with gaps")]


@pytest.mark.parametrize("case", with_kernels(), ids=str)
def test_the_driver_reads_what_numba_would_hand_it(case: Case) -> None:
    arguments: dict[str, list[Sequence[float]]] = {}
    drivers: dict[str, FakeDriver] = {}

    def recorded(kernel: Kernel) -> Any:
        if kernel.operation != case.operation:
            return None
        driver = drivers[kernel.name] = FakeDriver(widths_of_parameters(ptx_of(kernel, HOPPER)))
        packed = PackedLaunch(kernel.name, kernel.parameters, 77, 0, driver)

        def launch(grid: Any, block: Any, stream: int, numbers: Sequence[float]) -> None:
            arguments.setdefault(kernel.name, []).append(numbers)
            packed(grid, block, stream, numbers)

        return launch

    with launching_with(case.operation, recorded):
        run(case, "cpu")
        used = [kernel for kernel in KERNELS if arguments.get(kernel.name)]
        assert used
        for kernel in used:
            driver = drivers[kernel.name]
            for numbers, (read, where) in zip(arguments[kernel.name], driver.launches, strict=True):
                assert read == numbas_parameters(kernel, numbers, driver.widths)
                assert where[0] == 77
                assert where[-2:] == (0, STREAM)  # no dynamic shared memory


@pytest.mark.parametrize("case", with_kernels(), ids=str)
def test_a_twin_needs_nothing_of_torch_that_a_graph_could_not_capture(case: Case) -> None:
    """Launches of what is compiled are calls of the driver, and no operation of torch."""
    launches: dict[str, FakeDriver] = {}

    def counted(kernel: Kernel) -> PackedLaunch:
        slots = sum(parameter.slots for parameter in kernel.parameters)
        driver = launches[kernel.name] = FakeDriver([8] * slots)
        return PackedLaunch(kernel.name, kernel.parameters, 77, 0, driver)

    twin = registry.twins(case.operation)["cuda"]

    def watched(*arguments: Any) -> None:
        twin(*arguments)  # may keep what the next calls can use again
        with NoTorch():
            twin(*arguments)

    with launching_with(case.operation, counted), pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._twins[case.operation], "cpu", watched)
        run(case, "cpu")
    calls = [call for driver in launches.values() for call in driver.calls]
    assert calls.count("cuLaunchKernel") > 0
    assert set(calls) == {"cuCtxGetCurrent", "cuLaunchKernel"}


def test_what_is_wrong_is_refused_before_a_launch() -> None:
    """The launcher believes its arguments, so that the public functions have to look at them first."""
    one, values = torch.ones(3, 2), torch.ones(4, 2)
    rows, flags = torch.tensor([0, 1]), torch.tensor([False, True])

    def refuse(kernel: Kernel) -> Any:
        def launch(*arguments: Any) -> None:
            raise AssertionError(f"{kernel.name} was launched")

        return launch

    wrong: dict[str, tuple[str, Callable[[], Any]]] = {
        "gae": ("rewards is float64", lambda: kernels.gae(one.double(), one, values, trace_decay=0.9)),
        "n_step": (
            "discounts .* has strides",
            lambda: kernels.n_step(one, one.t().contiguous().t(), values, n=2),
        ),
        "recurrent_gather": ("rows is int32", lambda: kernels.recurrent_gather([one], rows.int(), flags)),
        "recurrent_scatter": ("values has 0 tensors", lambda: kernels.recurrent_scatter([one], rows, [])),
        "sample_categorical": ("random is .*meta", lambda: kernels.sample_categorical(one, one.to("meta"))),
    }
    for operation, (message, call) in wrong.items():
        with launching_with(operation, refuse), pytest.raises(SpecError, match=message):
            call()


def packed(driver: FakeDriver) -> PackedLaunch:
    return PackedLaunch("copy", parse(["int64", "float32"]), 5, 1, driver)


def test_a_thread_without_a_context_takes_the_devices() -> None:
    driver = FakeDriver([8, 4], context=0)
    launch = packed(driver)
    for _ in range(2):
        launch((1, 1, 1), (32, 1, 1), STREAM, (3, 0.5))
    assert driver.calls == [
        "cuCtxGetCurrent",
        "cuDeviceGet 1",
        "cuDevicePrimaryCtxRetain 71",
        "cuCtxSetCurrent 971",
        "cuLaunchKernel",
        "cuLaunchKernel",
    ]


def test_threads_do_not_share_a_buffer() -> None:
    driver = FakeDriver([8, 4])
    launch = packed(driver)

    def many(number: int) -> None:
        for _ in range(300):
            launch((1, 1, 1), (32, 1, 1), STREAM, (number, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))
    seen = [int.from_bytes(whole, "little") for (whole, _), _ in driver.launches]
    assert sorted(seen) == sorted(list(range(4)) * 300)
    assert all(
        ctypes.c_float.from_buffer_copy(real).value == number
        for number, ((_, real), _) in zip(seen, driver.launches, strict=True)
    )


def test_a_launch_that_the_driver_refuses_names_the_kernel() -> None:
    driver = FakeDriver([8, 4])
    driver.result = real_driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(RuntimeError, match=r"launch copy on \(1, 1, 1\) x \(32, 1, 1\).*INVALID_VALUE"):
        packed(driver)((1, 1, 1), (32, 1, 1), STREAM, (3, 0.5))


def test_another_device_is_made_current_for_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        current.append(index)
        yield
        current.pop()

    seen = []
    kernel = KERNELS[0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(launcher, "_raw_stream", lambda index: 100 + index)
    monkeypatch.setattr(
        kernel, "_launches", {i: lambda *given: seen.append((current[-1], given[2])) for i in (0, 1)}
    )
    monkeypatch.setattr(kernel, "rule", lambda: ((1, 1, 1), (1, 1, 1)))
    for index in (0, 1):
        kernel(torch.device("cuda", index), ())
    assert seen == [(0, 100), (1, 101)]
    assert current == [0]


def test_a_kernel_that_is_not_compiled_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call the operation once before"):
        launcher.make_launch(KERNELS[0], 0)


def test_an_unknown_numba_cuda_launches_in_its_own_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(launcher.importlib.metadata, "version", lambda name: "0.31.2")
    assert isinstance(launcher.make_launch(KERNELS[0], 0), NumbaLaunch)
    assert re.search(r"numba-cuda 0\.31\.2 is not one that seedflow's launcher knows", caplog.text)


def test_the_installed_numba_cuda_is_one_that_the_launcher_knows() -> None:
    version = launcher.importlib.metadata.version("numba-cuda")
    assert version.startswith(launcher.PACKED_VERSIONS)


def test_numba_cuda_still_has_what_the_launcher_reads() -> None:
    assert isinstance(_Kernel.library, property)
    assert callable(CUDACodeLibrary.get_cufunc)
    assert "handle" in CudaPythonFunction.__slots__
    for call in CALLS:
        assert callable(getattr(real_driver, call))


def test_numbas_own_launch_gets_typed_arguments_and_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    class Dispatcher:
        def __getitem__(self, where: Any) -> Callable[..., None]:
            return lambda *arguments: called.append((where, arguments))

    monkeypatch.setattr(cuda, "external_stream", lambda address: SimpleNamespace(address=address))
    tensor = torch.arange(6.0)
    launch = NumbaLaunch(Dispatcher(), parse(["float32[]", "int32", "float32"]))
    numbers = (0, 0, 6, 4, tensor.data_ptr(), 6, 4, 9, 0.1)
    launch((2, 1, 1), (32, 1, 1), STREAM, numbers)
    launch((2, 1, 1), (32, 1, 1), 0, numbers)
    ((grid, block, stream), (array, whole, real)), ((_, _, default), _) = called
    assert (grid, block, stream.address, default) == ((2, 1, 1), (32, 1, 1), STREAM, 0)
    assert array.__cuda_array_interface__ == {
        "shape": (6,),
        "strides": None,
        "typestr": "<f4",
        "data": (tensor.data_ptr(), False),
        "version": 3,
    }
    assert (type(whole).__name__, type(real).__name__) == ("int32", "float32")

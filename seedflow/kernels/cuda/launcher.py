"""Launching a kernel on torch's current stream.

A `Kernel` binds a ``@cuda.jit`` function to a signature and a launch rule. Three things can launch it:

- `PackedLaunch`, where the installed numba-cuda is a version whose argument layout the tests know: the
  arguments are packed into a buffer of the thread and one call of the driver does the rest, some
  microseconds on the host. Nothing is allocated on the GPU and nothing waits for it, so that a launch
  can be captured in a CUDA graph once the kernel is compiled.
- `NumbaLaunch`, Numba's own, for any other version; it costs some hundred microseconds.
- the simulator's (`seedflow.kernels.cuda.simulator`).

A launch checks nothing: the public function has checked its tensors. As torch's own operations do, it
works on the current stream; who uses tensors on several streams orders these, and calls ``record_stream``.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from seedflow.kernels.cuda.arguments import Parameter, decode, parse
from seedflow.kernels.cuda.target import SIMULATED, cuda

Grid = tuple[int, int, int]
Rule = Callable[..., tuple[Grid, Grid]]

KERNELS: list[Kernel] = []
"""Every kernel that was made, for the tests that compile, simulate and run them all."""

PACKED_VERSIONS = ("0.30.",)
"""The releases of numba-cuda whose internals `PackedLaunch` is tested with."""


class Launch(Protocol):
    """Launch one compiled kernel on one device.

    `stream` is the address of a CUDA stream, 0 for the default one; `arguments` are plain numbers as
    `seedflow.kernels.cuda.arguments` makes them.
    """

    def __call__(self, grid: Grid, block: Grid, stream: int, arguments: Sequence[float]) -> None: ...


class Kernel:
    """A kernel with its signature; call it to launch it.

    Parameters
    ----------
    operation
        The operation that it is part of.
    function
        What ``@kernel`` returned.
    signature
        The parameters, see `seedflow.kernels.cuda.arguments`.
    rule
        Grid and block for given sizes; a grid without blocks launches nothing.
    registers
        How many registers a thread may use; the compile tests hold it to that.
    double
        Whether it is meant to compute in float64.
    """

    def __init__(
        self,
        operation: str,
        function: Any,
        signature: Sequence[str],
        rule: Rule,
        *,
        registers: int,
        double: bool = False,
    ) -> None:
        self.operation = operation
        self.function = function
        self.parameters = parse(signature)
        self.rule = rule
        self.registers = registers
        self.double = double
        self._launches: dict[int | None, Launch] = {}
        self._lock = threading.Lock()
        KERNELS.append(self)

    @property
    def name(self) -> str:
        """Operation, function and the type of its first array."""
        first = next(parameter.dtype for parameter in self.parameters if parameter.rank)
        return f"{self.operation}-{self.function.py_func.__name__.lstrip('_')}-{first}"

    def __call__(self, device: torch.device, sizes: Sequence[int], *arguments: float) -> None:
        """Launch on the current stream of `device`; `sizes` are what the rule takes."""
        grid, block = self.rule(*sizes)
        if 0 in grid:
            return
        index = device.index
        launch = self._launches.get(index) or self._prepare(index)
        if SIMULATED:
            launch(grid, block, 0, arguments)
        elif torch.cuda.current_device() == index:
            launch(grid, block, current_stream(index), arguments)
        else:
            with torch.cuda.device(index):
                launch(grid, block, current_stream(index), arguments)

    def types(self) -> tuple[Any, ...]:
        """The signature as Numba's types."""
        return tuple(_numba_type(parameter) for parameter in self.parameters)

    def _prepare(self, index: int | None) -> Launch:
        with self._lock:
            if index not in self._launches:
                self._launches[index] = make_launch(self, index)
            return self._launches[index]


class PackedLaunch:
    """Launch through the driver, with arguments in a buffer that each thread has for itself.

    Parameters
    ----------
    name
        The kernel's, for errors.
    parameters
        Its signature.
    handle
        The compiled kernel's address in the driver.
    device
        Index of the device; a thread that has no CUDA context yet gets that device's.
    driver
        ``cuda.bindings.driver``, or what stands in for it.
    """

    def __init__(
        self, name: str, parameters: Sequence[Parameter], handle: int, device: int, driver: Any
    ) -> None:
        self._name = name
        self._handle = handle
        self._device = device
        self._driver = driver
        self._layout = struct.Struct("=" + "".join(parameter.format for parameter in parameters))
        self._of_thread = threading.local()

    def __call__(self, grid: Grid, block: Grid, stream: int, arguments: Sequence[float]) -> None:
        try:
            buffer, _, pointers = self._of_thread.memory
        except AttributeError:
            buffer, _, pointers = self._of_thread.memory = self._enter_thread()
        self._layout.pack_into(buffer, 0, *arguments)
        (error,) = self._driver.cuLaunchKernel(self._handle, *grid, *block, 0, stream, pointers, 0)
        if error:
            raise RuntimeError(f"the driver refused to launch {self._name} on {grid} x {block}: {error!r}")

    def _enter_thread(self) -> tuple[Any, Any, int]:
        """Make the buffer and the table of pointers into it; return them and the table's address."""
        driver = self._driver
        if int(_succeed(driver.cuCtxGetCurrent())) == 0:
            device = _succeed(driver.cuDeviceGet(self._device))
            _succeed(driver.cuCtxSetCurrent(_succeed(driver.cuDevicePrimaryCtxRetain(device))))
        buffer = ctypes.create_string_buffer(self._layout.size)
        slots = self._layout.size // 8
        start = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * slots)(*range(start, start + 8 * slots, 8))
        return buffer, pointers, ctypes.addressof(pointers)


class NumbaLaunch:
    """Launch through the public interface of any numba-cuda."""

    def __init__(self, function: Any, parameters: Sequence[Parameter]) -> None:
        self._function = function
        self._parameters = parameters

    def __call__(self, grid: Grid, block: Grid, stream: int, arguments: Sequence[float]) -> None:
        where = cuda.external_stream(stream) if stream else 0
        self._function[grid, block, where](*decode(self._parameters, arguments))


def make_launch(kernel: Kernel, index: int | None) -> Launch:
    """Compile a kernel for a device, and return what launches it there."""
    if SIMULATED:
        from seedflow.kernels.cuda.simulator import SimulatedLaunch

        return SimulatedLaunch(kernel.function, kernel.parameters)
    assert index is not None
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{kernel.name} is not compiled yet, and cannot be while a CUDA graph is captured: "
            "call the operation once before"
        )
    version = importlib.metadata.version("numba-cuda")
    if not version.startswith(PACKED_VERSIONS):
        logging.getLogger(__name__).warning(
            "numba-cuda %s is not one that seedflow's launcher knows (%s*): launches of %s take Numba's "
            "slower way; %s",
            version,
            "*, ".join(PACKED_VERSIONS),
            kernel.name,
            "install numba-cuda>=0.30.4,<0.31",
        )
        return NumbaLaunch(kernel.function, kernel.parameters)
    return make_packed(kernel, index)


def make_packed(kernel: Kernel, index: int) -> PackedLaunch:
    """Compile a kernel for a device, for launches through the driver."""
    from cuda.bindings import driver

    with torch.cuda.device(index):
        compiled = kernel.function.compile(kernel.types())
        compiled.bind()
        handle = int(compiled.library.get_cufunc().handle)
    return PackedLaunch(kernel.name, kernel.parameters, handle, index, driver)


def current_stream(index: int | None) -> int:
    """The address of torch's current stream on a device."""
    return int(_raw_stream(index))


def _public_stream(index: int | None) -> int:
    return torch.cuda.current_stream(index).cuda_stream


# torch's compiled code calls the first one, which makes no Stream object; CPU builds of torch lack it.
_raw_stream: Callable[[int | None], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)


def _succeed(result: Any) -> Any:
    error, *values = result
    if error:
        raise RuntimeError(f"the CUDA driver reports {error!r}")
    return values[0] if values else None


def _numba_type(parameter: Parameter) -> Any:
    one = getattr(cuda.types, parameter.dtype)
    if parameter.rank:
        one = cuda.types.Array(one, parameter.rank, "A" if parameter.strided else "C")
    return cuda.types.UniTuple(one, parameter.count) if parameter.count else one

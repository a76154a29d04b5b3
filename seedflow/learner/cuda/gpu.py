"""What the learner asks of CUDA, and torch's answer to it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.learner.streams import Event, Stream

MAPPED = 2  # of cuMemHostRegister: kernels may read the memory where it is


class Graph(Protocol):
    """Work that was captured once and is issued again by one call."""

    def replay(self) -> None:
        """Issue it to the current stream."""


class Gpu(Protocol):
    """One GPU.

    Attributes
    ----------
    device
        Its torch device.
    """

    device: torch.device

    def stream(self) -> Stream:
        """A new stream. It begins behind what was issued outside of any stream before its first use."""

    def capture(self, work: Callable[[], None], generators: Sequence[torch.Generator]) -> Graph:
        """Capture the work that a function issues, without doing it.

        Parameters
        ----------
        work
            Issues work to the current stream. It has run before in the same way, so that all is compiled.
        generators
            Sources of the random numbers in it; every replay draws new ones.

        Raises
        ------
        RuntimeError
            If something in it cannot be captured.
        """

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Zeroed memory of the host that the GPU copies from and to by itself."""

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Pin memory that exists, so that kernels may read it.

        Raises
        ------
        RuntimeError
            If the driver refuses.
        """

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """Undo `register`."""


class TorchGpu:
    """The GPU that torch calls the current one.

    Parameters
    ----------
    device
        A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._pool: Any = None  # of all graphs: they are replayed one at a time, and leave nothing in it

    def stream(self) -> Stream:
        """See `Gpu.stream`."""
        return TorchStream(self.device)

    def capture(self, work: Callable[[], None], generators: Sequence[torch.Generator]) -> Graph:
        """See `Gpu.capture`."""
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            cast(Any, graph).register_generator_state(generator)
        if self._pool is None:
            self._pool = cast(Any, torch.cuda.graph_pool_handle)()
        # Other threads use the GPU meanwhile: what they do neither belongs to the graph nor spoils it.
        stream = torch.cuda.current_stream(self.device)
        with torch.cuda.graph(graph, self._pool, stream, "thread_local"):
            work()
        return cast(Graph, graph)

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """See `Gpu.host`."""
        return torch.zeros(*shape, dtype=dtype).pin_memory()

    def register(self, memory: NDArray[np.uint8]) -> None:
        """See `Gpu.register`."""
        driver = self._driver()
        same = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        if not _succeed(driver.cuDeviceGetAttribute(same, self.device.index), "cuDeviceGetAttribute"):
            raise RuntimeError("this GPU cannot read the host's memory at the host's addresses")
        _succeed(driver.cuMemHostRegister(memory.ctypes.data, memory.nbytes, MAPPED), "cuMemHostRegister")

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        """See `Gpu.unregister`."""
        _succeed(self._driver().cuMemHostUnregister(memory.ctypes.data), "cuMemHostUnregister")

    def _driver(self) -> Any:
        """The driver's functions, with this GPU's context current.

        The driver's rather than the runtime's: after a refusal, torch would find the runtime's last error.
        """
        torch.cuda.synchronize(self.device)
        return importlib.import_module("cuda.bindings.driver")


class TorchStream:
    """A stream of torch's, which the loop's threads make their current one while they issue work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = cast(Any, torch.cuda.Stream)(device)
        self._begun = False

    def submit(self, work: Callable[[], None]) -> None:
        """See `Stream.submit`."""
        with self.scope():
            work()

    def scope(self) -> AbstractContextManager[object]:
        """See `Stream.scope`."""
        self._begin()
        return cast(AbstractContextManager[object], torch.cuda.stream(self._stream))

    def record(self) -> Event:
        """See `Stream.record`."""
        self._begin()
        return cast(Event, self._stream.record_event())

    def wait(self, event: Event) -> None:
        """See `Stream.wait`."""
        self._stream.wait_event(event)

    def _begin(self) -> None:
        """Wait for what made and filled the tensors, before the loops ran."""
        if not self._begun:
            self._stream.wait_stream(torch.cuda.default_stream(self._device))
            self._begun = True


def _succeed(result: tuple[Any, ...], call: str) -> Any:
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(f"{call} failed: {error.name}")
    return values[0] if values else None

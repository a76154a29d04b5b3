"""What is asked of torch and the driver, noted by stand-ins for both."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.learner.cuda.gpu import TorchGpu

Log = list[tuple[Any, ...]]


class Result(enum.IntEnum):
    """Of a call to the driver."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class StandInStream:
    def __init__(self, log: Log, name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: StandInStream) -> None:
        self.log.append((self.name, "waits for stream", other.name))

    def wait_event(self, event: str) -> None:
        self.log.append((self.name, "waits for", event))

    def record_event(self) -> str:
        self.log.append((self.name, "records"))
        return f"event of {self.name}"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What happened to torch.cuda, in order."""
    log: Log = []

    @contextmanager
    def stream(stream: StandInStream) -> Iterator[None]:
        log.append(("enter", stream.name))
        yield
        log.append(("leave", stream.name))

    @contextmanager
    def graph(graph: Any, pool: Any, stream: StandInStream, mode: str) -> Iterator[None]:
        log.append(("begin", pool, stream.name, mode))
        yield
        log.append(("end",))

    class StandInGraph:
        def register_generator_state(self, generator: torch.Generator) -> None:
            log.append(("register", generator))

    default = StandInStream(log, "default")
    for name, value in {
        "current_device": lambda: 3,
        "Stream": lambda device: StandInStream(log, "own"),
        "stream": stream,
        "default_stream": lambda device: default,
        "current_stream": lambda device: StandInStream(log, "current"),
        "synchronize": lambda device: log.append(("synchronize",)),
        "graph": graph,
        "CUDAGraph": StandInGraph,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log


@pytest.fixture
def gpu(log: Log) -> TorchGpu:
    return TorchGpu(torch.device("cuda"))


def test_it_is_the_current_gpu_unless_one_is_named(gpu: TorchGpu) -> None:
    assert gpu.device == torch.device("cuda", 3)
    assert TorchGpu(torch.device("cuda", 1)).device == torch.device("cuda", 1)


def test_a_stream_begins_behind_what_was_issued_before_it(gpu: TorchGpu, log: Log) -> None:
    stream = gpu.stream()
    stream.submit(lambda: log.append(("work",)))
    with stream.scope():
        log.append(("more",))
    assert log == [
        ("own", "waits for stream", "default"),
        ("enter", "own"),
        ("work",),
        ("leave", "own"),
        ("enter", "own"),
        ("more",),
        ("leave", "own"),
    ]


def test_an_event_covers_what_was_issued_before_the_stream(gpu: TorchGpu, log: Log) -> None:
    one, other = gpu.stream(), gpu.stream()
    other.wait(one.record())
    assert log == [
        ("own", "waits for stream", "default"),
        ("own", "records"),
        ("own", "waits for", "event of own"),
    ]


def test_graphs_share_a_pool_and_leave_other_threads_alone(gpu: TorchGpu, log: Log) -> None:
    generator = torch.Generator()
    for _ in range(2):
        gpu.capture(lambda: log.append(("work",)), [generator])
    one = [("register", generator), ("begin", "pool", "current", "thread_local"), ("work",), ("end",)]
    assert log == one * 2


class StandInDriver:
    """``cuda.bindings.driver`` with one GPU."""

    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM=91)

    def __init__(self, same_addresses: int = 1, refuses: bool = False) -> None:
        self.same_addresses, self.refuses = same_addresses, refuses
        self.pinned: dict[int, tuple[int, int]] = {}

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Result, int]:
        assert (attribute, device) == (91, 3)
        return Result.CUDA_SUCCESS, self.same_addresses

    def cuMemHostRegister(self, address: int, size: int, flags: int) -> tuple[Result]:
        if self.refuses:
            return (Result.CUDA_ERROR_OUT_OF_MEMORY,)
        self.pinned[address] = size, flags
        return (Result.CUDA_SUCCESS,)

    def cuMemHostUnregister(self, address: int) -> tuple[Result]:
        del self.pinned[address]
        return (Result.CUDA_SUCCESS,)


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: StandInDriver) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)  # type: ignore[arg-type]


def test_memory_is_pinned_whole_and_mapped_and_let_go(
    gpu: TorchGpu, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = StandInDriver()
    with_driver(monkeypatch, driver)
    memory = np.zeros(4096, np.uint8)
    gpu.register(memory)
    assert driver.pinned == {memory.ctypes.data: (4096, 2)}
    assert log == [("synchronize",)]  # makes the GPU's context current
    gpu.unregister(memory)
    assert driver.pinned == {}


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (StandInDriver(refuses=True), "cuMemHostRegister failed: CUDA_ERROR_OUT_OF_MEMORY"),
        (StandInDriver(same_addresses=0), "cannot read the host's memory at the host's addresses"),
    ],
)
def test_a_refusal_has_a_reason(
    driver: StandInDriver, reason: str, gpu: TorchGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, driver)
    with pytest.raises(RuntimeError, match=reason):
        gpu.register(np.zeros(16, np.uint8))
    assert driver.pinned == {}

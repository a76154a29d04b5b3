"""Timing work on a GPU, as the work itself takes and as a caller waits for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch


class Timer(Protocol):
    """Three ways to time a call, all in microseconds and warmed up."""

    def gpu(self, call: Callable[[], Any], calls: int = 1) -> float:
        """The GPU's time for one of `calls` alike in `call`, replayed from a CUDA graph without the host."""
        ...

    def eager(self, call: Callable[[], Any], calls: int = 1) -> float:
        """Time of one of `calls` in `call`, called over and over: the larger of the host's and the GPU's."""
        ...

    def host(self, call: Callable[[], Any], calls: int = 1) -> float:
        """The host's time for one of `calls` in `call`, while the GPU keeps up."""
        ...


class GpuTimer:
    """Time with CUDA events on the current device.

    Parameters
    ----------
    seconds
        About how long one measurement takes.
    """

    def __init__(self, seconds: float = 0.15) -> None:
        self._seconds = seconds

    def gpu(self, call: Callable[[], Any], calls: int = 1) -> float:
        stream = cast(Any, torch.cuda.Stream)()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return self._median(graph.replay) / calls

    def eager(self, call: Callable[[], Any], calls: int = 1) -> float:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        once = self._between(call, 1)
        repeats = max(1, int(self._seconds * 1e6 / 5 / max(once, 1.0)))
        return statistics.median(self._between(call, repeats) for _ in range(5)) / calls

    def host(self, call: Callable[[], Any], calls: int = 1) -> float:
        times = []
        for _ in range(3):
            call()
        for _ in range(15):
            torch.cuda.synchronize()
            began = time.perf_counter()
            call()
            times.append((time.perf_counter() - began) * 1e6)
        torch.cuda.synchronize()
        return statistics.median(times) / calls

    def _median(self, call: Callable[[], Any]) -> float:
        call()
        once = self._between(call, 1)
        repeats = max(5, min(200, int(self._seconds * 1e6 / max(once, 1.0))))
        return statistics.median(self._between(call, 1) for _ in range(repeats))

    def _between(self, call: Callable[[], Any], repeats: int) -> float:
        start, end = (cast(Any, torch.cuda.Event)(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / repeats

"""A GPU that is none: it works late, and records the order in which it works.

What is submitted to a stream waits in a queue; an event is a mark in that queue. Work is done when the host
waits for it, or when other work needs it, and otherwise whenever the test's `Schedule` says so. So whatever
the host or another stream relies on without an event is not there, or is gone, and shows as wrong numbers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.learner.streams import Event, Stream

CPU = torch.device("cpu")
Schedule = Callable[[int], int]
"""Told how many queues there are, says how many steps of work to do now, each of a queue in turn."""


def as_late_as_possible(queues: int) -> int:
    """Do nothing that is not asked for."""
    return 0


class FakeEvent:
    """A mark in a stream's queue, or none where `passed` is set at once."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream, self.passed = stream, False

    def synchronize(self) -> None:
        self.stream.gpu.log.append(("host", "waits for", self.stream.name))
        if ("host", self.stream.name) not in self.stream.gpu.deaf:
            self.stream.advance_to(self)


@dataclass
class FakeStream:
    """A queue of work, marks and waits."""

    gpu: FakeGpu
    name: str
    in_scope: int = 0
    queue: deque[Callable[[], None] | FakeEvent | tuple[str, FakeEvent]] = field(default_factory=deque)

    def submit(self, work: Callable[[], None]) -> None:
        with self.gpu.lock:
            self.queue.append(work)
            self.gpu.work_some()
            if self.in_scope:  # what is issued there comes behind it
                self.advance_to(None)

    @contextmanager
    def scope(self) -> Iterator[None]:
        # Torch waits where the host reads a result, which all that is issued in a scope does sooner or later.
        with self.gpu.lock:
            self.advance_to(None)
            self.in_scope += 1
            try:
                yield
            finally:
                self.in_scope -= 1

    def record(self) -> Event:
        with self.gpu.lock:
            event = FakeEvent(self)
            self.queue.append(event)
            return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeEvent)
        with self.gpu.lock:
            self.gpu.log.append((self.name, "waits for", event.stream.name))
            if (self.name, event.stream.name) not in self.gpu.deaf:
                self.queue.append(("wait", event))

    def advance_to(self, event: FakeEvent | None) -> None:
        """Work until an event has passed; None: until the queue is empty."""
        with self.gpu.lock:
            while self.queue and not (event is not None and event.passed):
                self.step()

    def step(self) -> None:
        """Do the next thing in the queue."""
        match self.queue.popleft():
            case FakeEvent() as event:
                event.passed = True
            case ("wait", FakeEvent() as event):
                event.stream.advance_to(event)
            case work:
                self.gpu.log.append((self.name, "works"))
                work()  # type: ignore[operator]


@dataclass
class FakeGraph:
    """A graph that issues its work again by calling it."""

    gpu: FakeGpu
    work: Callable[[], None]

    def replay(self) -> None:
        self.gpu.log.append(("replay",))
        self.work()


@dataclass
class FakeGpu:
    """Streams on the CPU; implements `seedflow.learner.cuda.gpu.Gpu`.

    Attributes
    ----------
    log
        What happened, in order.
    deaf
        Pairs of streams, or a stream and the host, of which the first ignores the second one's events: what a
        forgotten wait would do.
    capture_fails, register_fails
        Messages of errors to raise.
    """

    schedule: Schedule = as_late_as_possible
    deaf: frozenset[tuple[str, str]] = frozenset()
    capture_fails: str | None = None
    register_fails: str | None = None
    device: torch.device = CPU
    log: list[tuple[object, ...]] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    registered: list[int] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def stream(self) -> Stream:
        names = ("inference", "prefetch", "training")
        self.streams.append(FakeStream(self, names[len(self.streams)]))
        return self.streams[-1]

    def capture(self, work: Callable[[], None], generators: Sequence[torch.Generator]) -> FakeGraph:
        self.log.append(("capture", len(generators)))
        if self.capture_fails is not None:
            raise RuntimeError(self.capture_fails)
        return FakeGraph(self, work)

    def host(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    def register(self, memory: NDArray[np.uint8]) -> None:
        if self.register_fails is not None:
            raise RuntimeError(self.register_fails)
        self.registered.append(memory.ctypes.data)

    def unregister(self, memory: NDArray[np.uint8]) -> None:
        self.registered.remove(memory.ctypes.data)
        self.log.append(("unregister",))

    def work_some(self) -> None:
        """Work as the schedule says."""
        for turn in range(self.schedule(len(self.streams))):
            stream = self.streams[turn % len(self.streams)]
            if stream.queue:
                stream.step()

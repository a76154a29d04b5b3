"""Driving the learner's loops by one thread each."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from seedflow.learner.pulse import Pulse
from seedflow.learner.serving import Serving
from seedflow.learner.trainer import Trainer

log = logging.getLogger(__name__)

LOOK_UP_SECONDS = 0.5  # how long a loop with nothing to do sleeps before it looks whether to stop


@dataclass(frozen=True)
class Loop:
    """One loop for one thread.

    Attributes
    ----------
    name
        For logs and metrics.
    step
        Does what is there to do, waiting at most `LOOK_UP_SECONDS`; returns whether it did anything.
    wait
        Waits for something to do, at most the seconds that it is given.
    torch_threads
        Torch threads within a step.
    """

    name: str
    step: Callable[[], bool]
    wait: Callable[[float], None]
    torch_threads: int


def serving_loop(serving: Serving, torch_threads: int) -> Loop:
    """Inference; it waits for events within its step."""
    inference = serving.inference
    return Loop("inference", lambda: inference.step(LOOK_UP_SECONDS), lambda timeout: None, torch_threads)


def training_loops(trainer: Trainer, torch_threads: int) -> list[Loop]:
    """Prefetch and training, as one loop that does both in turn or as two that overlap.

    To fetch a batch of unrolls within the CPU's memory is quick beside training on it: two threads would lose
    more by passing the interpreter lock to and fro than they could win.
    """
    if trainer.fetches_quickly:
        return [Loop("training", trainer.fetch_and_train, trainer.prefetch.wait, torch_threads)]
    return [
        Loop("prefetch", trainer.prefetch.step, trainer.prefetch.wait, 1),
        Loop("training", trainer.train, trainer.training.wait, torch_threads),
    ]


class LoopThreads:
    """Loops as threads.

    The first exception of any of them ends all; `join` raises it.

    Parameters
    ----------
    loops
        What to drive.
    done
        Whether the run has taken all its steps: then all loops end.
    wake
        Makes waiting loops look up.
    pulse
        Where each loop says that it goes on.
    """

    def __init__(
        self, loops: Sequence[Loop], done: Callable[[], bool], wake: Callable[[], None], pulse: Pulse
    ) -> None:
        self._done, self._wake, self._pulse = done, wake, pulse
        self._stop = threading.Event()
        self.ended = threading.Event()
        """Set when the loops are about to end: all steps taken, a failure, or `stop`."""
        self.finished: set[str] = set()
        """Names of the loops that have ended without a failure."""
        self.cpu_seconds = {loop.name: 0.0 for loop in loops}
        """CPU time that each loop's thread has taken; threads that torch adds to it are not counted."""
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._drive, args=(loop,), name=f"seedflow-{loop.name}") for loop in loops
        ]

    def start(self) -> None:
        """Start the threads."""
        sys.setswitchinterval(0.0005)  # a loop that waits for the GIL holds up every actor
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask the loops to end; safe to call from any thread, more than once."""
        self._stop.set()
        self.ended.set()
        self._wake()

    def join(self, timeout: float) -> None:
        """Wait for the loops to end.

        Raises
        ------
        Exception
            The first failure of a loop.
        TimeoutError
            If a loop is still running after `timeout` seconds.
        """
        for thread in self._threads:
            thread.join(timeout)
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if self._failure is not None:
            raise self._failure
        if alive:
            raise TimeoutError(f"{', '.join(alive)} did not end within {timeout} s")

    def cpu_metrics(self) -> dict[str, float]:
        """`cpu_seconds` as metrics."""
        return {f"cpu/{name}_seconds": seconds for name, seconds in self.cpu_seconds.items()}

    def _drive(self, loop: Loop) -> None:
        torch.set_num_threads(loop.torch_threads)
        try:
            while not self._stop.is_set():
                self._pulse.beat(loop.name)
                if not loop.step():
                    loop.wait(LOOK_UP_SECONDS)
                self.cpu_seconds[loop.name] = time.thread_time()
                if self._done():
                    self.stop()
            self.finished.add(loop.name)
        except Exception as error:
            log.error("the %s loop failed:\n%s", loop.name, traceback.format_exc())
            if self._failure is None:
                self._failure = error
            self.stop()
        finally:
            self._pulse.end(loop.name)

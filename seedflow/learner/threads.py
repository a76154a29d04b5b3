"""Driving the learner's loops by one thread each."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

import torch

from seedflow.learner.learner import Learner

log = logging.getLogger(__name__)

LOOK_UP_SECONDS = 0.5  # how long a loop with nothing to do sleeps before it looks whether to stop


class LoopThreads:
    """The three loops of a learner as three threads: inference, prefetch, training.

    The first exception of any of them ends all three; `join` raises it.

    Parameters
    ----------
    learner
        Whose loops.
    inference_threads, training_threads
        Torch threads within a forward pass and within a training step.
    """

    def __init__(self, learner: Learner, inference_threads: int, training_threads: int) -> None:
        self._learner = learner
        self._stop = threading.Event()
        self.ended = threading.Event()
        """Set when the loops are about to end: all steps taken, a failure, or `stop`."""
        self.trained = False
        """Whether the training loop has ended without a failure, so that its state can be saved."""
        self.cpu_seconds = {"inference": 0.0, "prefetch": 0.0, "training": 0.0}
        """CPU time that each loop's thread has taken; threads that torch adds to it are not counted."""
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(
                target=self._drive, args=(loop, threads), name=f"seedflow{loop.__name__}".replace("_", "-")
            )
            for loop, threads in (
                (self._inference, inference_threads),
                (self._prefetch, 1),
                (self._training, training_threads),
            )
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
        self._learner.wake()

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

    def _drive(self, loop: Callable[[], None], torch_threads: int) -> None:
        torch.set_num_threads(torch_threads)
        try:
            loop()
        except Exception as error:
            log.error("the %s loop failed:\n%s", loop.__name__.strip("_"), traceback.format_exc())
            if self._failure is None:
                self._failure = error
            self.stop()

    def _inference(self) -> None:
        inference = self._learner.inference
        while not self._stop.is_set():
            inference.step(LOOK_UP_SECONDS)
            self.cpu_seconds["inference"] = time.thread_time()

    def _prefetch(self) -> None:
        prefetch = self._learner.prefetch
        while not self._stop.is_set():
            if not prefetch.step():
                prefetch.wait(LOOK_UP_SECONDS)
            self.cpu_seconds["prefetch"] = time.thread_time()

    def _training(self) -> None:
        training = self._learner.training
        while not self._stop.is_set():
            if training.step():
                self._learner.save_if_due()
            else:
                training.wait(LOOK_UP_SECONDS)
            self.cpu_seconds["training"] = time.thread_time()
            if self._learner.done:
                self.stop()
        self.trained = True

"""The learner's loops, running: as threads of one process, or as two processes.

Threads share one device, as a GPU needs it, and one interpreter lock. On a CPU, where inference and training
both run many small operations from Python, two processes do not wait for that lock.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from seedflow.algos import make_algorithm
from seedflow.algos.randomness import torch_seed
from seedflow.checkpoints import Writer
from seedflow.config import Config
from seedflow.errors import ConfigError
from seedflow.learner.arena import SharedArena
from seedflow.learner.learner import Learner
from seedflow.learner.progress import Progress
from seedflow.learner.pulse import Pulse
from seedflow.learner.serving import Serving
from seedflow.learner.shared import Shared
from seedflow.learner.start import LearnerStart
from seedflow.learner.threads import LoopThreads, serving_loop, training_loops
from seedflow.learner.training_process import TrainingProcess
from seedflow.networks.devices import pick_device
from seedflow.rpc.control import ControlServer
from seedflow.rpc.leases import Lease

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0

Report = Callable[[str], None]
Silent = Callable[[Lease], None]


class DrivenLearner(ABC):
    """A learner whose loops run by themselves between `start` and `finish`. A context manager.

    Attributes
    ----------
    attempt
        Generation of the checkpoint that the run went on from; 0 for a new run.
    progress
        The run's counters.
    """

    attempt: int
    progress: Progress

    @abstractmethod
    def start(self) -> None:
        """Start the loops."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Wait until the loops are about to end, for `timeout` seconds at most; whether they are."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Everything measured since the last call, by metric name."""

    @abstractmethod
    def finish(self) -> None:
        """End the loops and save a checkpoint, unless training failed.

        Raises
        ------
        Exception
            The first failure of a loop.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; may be called without `start`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class OneProcess(DrivenLearner):
    """All loops as threads of this process."""

    def __init__(
        self, start: LearnerStart, control: ControlServer, report: Report, silent: Silent, pulse: Pulse
    ) -> None:
        config = start.config
        writer = Writer.this(run=start.run, generation=start.generation)
        self._learner = learner = Learner(
            config, start.spec, control, start.run_dir, report, silent, writer=writer
        )
        try:
            self.attempt = learner.begin(start.resume, start.restore_replay)
        except BaseException:
            learner.close()
            raise
        self.progress = learner.progress
        loops = [serving_loop(learner.serving, config.inference.torch_threads)]
        loops += training_loops(learner.trainer, training_threads(config))
        self._loops = LoopThreads(loops, lambda: learner.done, learner.wake, pulse)

    def start(self) -> None:
        self._loops.start()

    def wait(self, timeout: float) -> bool:
        return self._loops.ended.wait(timeout)

    def measure(self) -> dict[str, float]:
        return self._learner.measure() | self._loops.cpu_metrics()

    def finish(self) -> None:
        self._loops.stop()
        try:
            self._loops.join(JOIN_SECONDS)
        finally:
            # Inference has ended, too: the checkpoint and the last report count the same steps.
            if "training" in self._loops.finished:
                self._learner.save()

    def close(self) -> None:
        self._learner.close()


class TwoProcesses(DrivenLearner):
    """Inference as a thread of this process, prefetch and training in a child."""

    def __init__(
        self,
        start: LearnerStart,
        control: ControlServer,
        report: Report,
        silent: Silent,
        pulse: Pulse,
        stopped: Callable[[], bool],
    ) -> None:
        config, spec = start.config, start.spec
        with ExitStack() as stack:
            algorithm = make_algorithm(config, spec)
            arena = SharedArena()
            shared = Shared(config, spec, algorithm, arena)
            stack.callback(shared.close)
            self._training = stack.enter_context(
                TrainingProcess(
                    start,
                    arena.fds,
                    control.wake_fd,
                    training_threads(config),
                    report,
                )
            )
            self._serving = serving = Serving(config, algorithm, shared, control, report, silent)
            self.attempt = self._training.await_ready(stopped)
            # The checkpoint is the other process's, which does not act: go on with a stream of its own.
            seed = torch_seed(config.seed, "sampling", self.attempt)
            algorithm.acting.generator.manual_seed(seed)
            self.progress = progress = shared.progress
            self._stack = stack.pop_all()
        self._trained: dict[str, float] = {}
        total = config.train.total_agent_steps
        loop = serving_loop(serving, config.inference.torch_threads)
        self._loops = LoopThreads([loop], lambda: progress.agent_steps >= total, serving.wake, pulse)

    def start(self) -> None:
        self._loops.start()

    def wait(self, timeout: float) -> bool:
        self._trained |= self._training.poll() or {}
        return self._loops.ended.wait(timeout) or self._training.ended

    def measure(self) -> dict[str, float]:
        self._trained |= self._training.poll() or {}
        trained, self._trained = self._trained, {}
        return self._serving.measure(trained) | self._loops.cpu_metrics()

    def finish(self) -> None:
        self._loops.stop()
        try:
            self._loops.join(JOIN_SECONDS)
        finally:
            # Inference has ended, too: the checkpoint and the last report count the same steps.
            self._training.stop()

    def close(self) -> None:
        self._stack.close()


def make_learner(
    start: LearnerStart,
    control: ControlServer,
    report: Report,
    silent: Silent,
    pulse: Pulse,
    stopped: Callable[[], bool],
) -> DrivenLearner:
    """The learner as `train.runs_in` wants it.

    Parameters
    ----------
    start
        What the learner was told.
    control
        Where actors ring.
    report
        Called with a line about something that a person should know.
    silent
        Called with a lease from which nothing was heard for too long.
    pulse
        Where the loops of this process say that they go on.
    stopped
        Whether to wait no longer for a process of the learner's own.

    Raises
    ------
    StartStopped
        If `stopped` said so.
    SeedflowError
        If it cannot be made, or cannot go on from its checkpoint.
    """
    config = start.config
    on_cpu = pick_device(config.device).type == "cpu"
    separate = config.train.runs_in == "process" or (config.train.runs_in == "auto" and on_cpu)
    if separate and not on_cpu:
        raise ConfigError(
            "train.runs_in = 'process' is for learners on a CPU, this one has a GPU; use train.runs_in=thread"
        )
    if separate:
        return TwoProcesses(start, control, report, silent, pulse, stopped)
    return OneProcess(start, control, report, silent, pulse)


def training_threads(config: Config) -> int:
    """Torch threads of the training loop: as set, else the cores that nobody else is meant to use."""
    if config.train.torch_threads is not None:
        return config.train.torch_threads
    taken = 1 + (config.actor.count if config.runtime == "local" else 0)
    threads = max(1, len(os.sched_getaffinity(0)) - taken)
    log.info("training uses %d torch thread(s); set train.torch_threads to change that", threads)
    return threads

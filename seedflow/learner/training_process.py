"""Training in a process of its own, ``python -m seedflow.learner.training_process``, and its parent's side.

On a CPU, inference and training both run many small operations from Python; as threads they would fight for
one interpreter lock. The learner's process keeps inference. It starts this child as a role of its own
(`seedflow.roles`), which inherits the memory that the loops share (`seedflow.learner.arena`), prefetches,
trains and saves the run's checkpoints, and sends its measurements up.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seedflow.checkpoints import Writer
from seedflow.config import Config
from seedflow.errors import RunFailed, SeedflowError
from seedflow.learner.memory import keep_freed_memory
from seedflow.learner.pulse import Pulse, Stillness
from seedflow.learner.start import LearnerStart
from seedflow.roles import EXIT_DONE, EXIT_FAILED, EXIT_HOPELESS, RoleChannel, RoleProcess, failure, run_role
from seedflow.roles.logs import begin_log
from seedflow.specs import EnvSpec

ORPHAN_SECONDS = 20.0  # a checkpoint may be large
READY_SECONDS = 300.0  # importing torch and loading a checkpoint
JOIN_SECONDS = 60.0
CRASH_SECONDS = 5.0  # for the stacks of a process that stands still
POLL_SECONDS = 0.02


class TrainingFailed(RunFailed):
    """The training process failed.

    Attributes
    ----------
    failed
        What it said of it: a ``failed`` message for the supervisor.
    """

    def __init__(self, text: str, failed: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.failed = {**failure(self, retryable=True), "traceback": ""} if failed is None else failed


class StartStopped(RunFailed):
    """The learner was asked to stop before it trained."""


class TrainingProcess:
    """The child, seen from the learner's process. A context manager; leaving it kills what is left.

    Parameters
    ----------
    learner
        What the learner was told: config, run directory, what to begin with.
    fds
        What the child inherits: the shared arena's file descriptors.
    wake_fd
        An eventfd that tells inference of freed slots.
    torch_threads
        Torch threads of the training loop.
    report
        Called with a line about something that a person should know.

    Attributes
    ----------
    ended
        Whether the child has ended, or is about to.
    """

    def __init__(
        self,
        learner: LearnerStart,
        fds: list[int],
        wake_fd: int,
        torch_threads: int,
        report: Callable[[str], None],
    ) -> None:
        self._report = report
        self._failed: dict[str, Any] | None = None
        self._attempt: int | None = None
        self._values: dict[str, float] | None = None
        self._still = ""
        self.ended = False
        start = {
            "config": learner.config.model_dump(mode="json"),
            "spec": learner.spec.to_json(),
            "run_dir": str(learner.run_dir),
            "run": learner.run,
            "generation": learner.generation,
            "resume": learner.resume,
            "restore_replay": learner.restore_replay,
            "fds": fds,
            "wake_fd": wake_fd,
            "torch_threads": torch_threads,
        }
        self._process = RoleProcess(
            "seedflow.learner.training_process",
            start,
            learner.run_dir / "logs" / "training.log",
            inherited=[*fds, wake_fd],
        )
        limits = learner.config.learner.hang_seconds, learner.config.inference.lease_seconds
        self._stillness = Stillness(self._process, *limits)

    def await_ready(self, stopped: Callable[[], bool]) -> int:
        """Wait until it trains; returns the generation that it went on from, or 0.

        Parameters
        ----------
        stopped
            Whether to wait no longer.

        Raises
        ------
        TrainingFailed
            With its traceback.
        StartStopped
            If `stopped` said so.
        """
        deadline = time.monotonic() + READY_SECONDS
        while self._attempt is None:
            self._receive()
            if self.ended:
                self._raise()
            if stopped():
                raise StartStopped("the learner was asked to stop before it trained")
            if time.monotonic() > deadline:
                raise TrainingFailed(
                    f"the training process was not ready within {READY_SECONDS:g} s; see "
                    f"{self._process.log_path}"
                )
            time.sleep(POLL_SECONDS)
        return self._attempt

    def poll(self) -> dict[str, float] | None:
        """Take what the child has sent; returns its measurements, if there are new ones."""
        self._receive()
        values, self._values = self._values, None
        return values

    def stop(self) -> None:
        """Let the child save a checkpoint and end.

        Raises
        ------
        TrainingFailed
            If it failed before or while it ended.
        """
        code = self._process.stop(JOIN_SECONDS)
        self._receive()
        if code != EXIT_DONE:
            self._raise()

    def __enter__(self) -> TrainingProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()

    def _receive(self) -> None:
        code = self._process.returncode()
        for message in self._process.poll_messages():
            match message["kind"]:
                case "metrics":
                    self._values = {**(self._values or {}), **message["values"]}
                case "note":
                    self._report(str(message["text"]))
                case "state" if message["state"] == "running":
                    self._attempt = int(message["attempt"])
                case "failed":
                    self._failed = message
                    self.ended = True
        if code is not None:
            self.ended = True
        elif not self.ended and (still := self._stillness.look()):
            self._still, self.ended = still, True
            self._process.crash(CRASH_SECONDS)

    def _raise(self) -> None:
        code = self._process.kill()
        self._receive()
        if self._failed is not None:
            raise TrainingFailed(f"training failed:\n{self._failed['traceback']}", self._failed)
        if self._still:
            end = f"was killed, since {self._still}"
        elif code > 128:
            end = f"was killed by {signal.Signals(code - 128).name}"
        else:
            end = f"ended with code {code}"
        raise TrainingFailed(
            f"the training process {end}; the end of its log {self._process.log_path}:\n"
            + self._process.log_tail(20)
        )


def main(channel: RoleChannel) -> int:
    """Train until told to stop; returns the exit code."""
    begin_log(channel.start)
    keep_freed_memory()
    from seedflow.algos import make_algorithm
    from seedflow.learner.arena import SharedArena
    from seedflow.learner.shared import Shared
    from seedflow.learner.threads import LoopThreads, training_loops
    from seedflow.learner.trainer import Trainer

    start = channel.start
    config, spec = Config.model_validate(start["config"]), EnvSpec.from_json(start["spec"])
    wake_fd = int(start["wake_fd"])
    algorithm = make_algorithm(config, spec)
    shared = Shared(config, spec, algorithm, SharedArena(start["fds"]))

    def note(text: str) -> None:
        channel.send({"kind": "note", "text": text})

    trainer = Trainer(
        config,
        spec,
        algorithm,
        shared,
        Path(start["run_dir"]),
        lambda: os.eventfd_write(wake_fd, 1),
        note,
        acts_here=False,
        writer=Writer.this(run=str(start["run"]), generation=int(start["generation"])),
    )
    try:
        attempt = trainer.begin(start["resume"], start["restore_replay"])
    except SeedflowError as error:
        channel.send(failure(error, retryable=False))
        return EXIT_HOPELESS

    def done() -> bool:
        return shared.progress.agent_steps >= config.train.total_agent_steps

    pulse = Pulse(channel.board)
    loops = LoopThreads(training_loops(trainer, int(start["torch_threads"])), done, trainer.wake, pulse)
    channel.send({"kind": "state", "state": "running", "attempt": attempt})
    loops.start()
    report_at = time.monotonic() + config.metrics.every_seconds
    while not loops.ended.wait(0.2) and not channel.stop_requested.is_set():
        if time.monotonic() >= report_at:
            _send_metrics(trainer, loops, channel)
            report_at += config.metrics.every_seconds
    loops.stop()
    try:
        loops.join(JOIN_SECONDS)
    except Exception as error:
        channel.send(failure(error, retryable=True))
        if "training" in loops.finished:
            trainer.save()
        return EXIT_FAILED
    _send_metrics(trainer, loops, channel)
    # Once inference has ended, too, the checkpoint counts the same steps as the last report.
    while not channel.stop_requested.wait(1.0):
        continue
    trainer.save()
    trainer.close()
    shared.close()
    return EXIT_DONE


def _send_metrics(trainer: Any, loops: Any, channel: RoleChannel) -> None:
    values = trainer.measure() | loops.cpu_metrics()
    channel.send({"kind": "metrics", "values": values})


if __name__ == "__main__":
    run_role(main, ORPHAN_SECONDS)

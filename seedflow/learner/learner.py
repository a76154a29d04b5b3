"""The learner in one process: everything that is neither an environment nor a socket, put together.

A learner has two halves that meet in `Shared`: `Serving`, which runs inference, and `Trainer`, which
prefetches, trains and saves. Their three loops are objects with a non-blocking `step`; `threads` drives
them by one thread each, the one-process runtime in a fixed order. On a CPU the halves may also be two
processes (`seedflow.learner.training_process`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from seedflow.algos import make_algorithm
from seedflow.checkpoints import Writer
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.backend import Backend
from seedflow.learner.serving import Serving
from seedflow.learner.shared import Shared
from seedflow.learner.trainer import Trainer
from seedflow.rpc.leases import Lease
from seedflow.rpc.transport import LearnerTransport
from seedflow.specs import EnvSpec


class Learner:
    """Both halves of a learner and what they share.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    transport
        Where actors ring.
    run_dir
        Where checkpoints go.
    report
        Called with a line about something that a person should know.
    silent
        Called with the lease of an actor of which nothing was heard for too long.
    backend
        Makes what depends on the device; by default that of the config's.
    writer
        See `Trainer`.

    Attributes
    ----------
    serving, trainer
        The halves.
    inference, prefetch, training
        Their loops.
    shared
        What they share.
    progress
        The run's counters.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        transport: LearnerTransport,
        run_dir: Path,
        report: Callable[[str], None],
        silent: Callable[[Lease], None] = lambda lease: None,
        backend: Backend | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.config, self.report = config, report
        self.algorithm = make_algorithm(config, spec)
        device = self.algorithm.learning.parameters.parameter.device
        self.shared = Shared(config, spec, self.algorithm, Arena(device), backend)
        self.progress = self.shared.progress
        with ExitStack() as undo:
            undo.callback(self.shared.close)
            shared, algorithm = self.shared, self.algorithm
            wake = transport.wake
            self.trainer = Trainer(config, spec, algorithm, shared, run_dir, wake, report, writer=writer)
            undo.callback(self.trainer.close)
            self.serving = Serving(config, algorithm, shared, transport, report, silent)
            undo.pop_all()
        self.inference = self.serving.inference
        self.prefetch, self.training = self.trainer.prefetch, self.trainer.training

    @property
    def done(self) -> bool:
        """Whether the run has taken all its steps."""
        return self.progress.agent_steps >= self.config.train.total_agent_steps

    def wake(self) -> None:
        """Make every waiting loop look up, to see that it shall stop."""
        self.serving.wake()
        self.trainer.wake()

    def measure(self) -> dict[str, float]:
        """Everything measured since the last call, by metric name."""
        return self.serving.measure(self.trainer.measure())

    def save_if_due(self) -> None:
        """See `Trainer.save_if_due`."""
        self.trainer.save_if_due()

    def save(self) -> int:
        """See `Trainer.save`."""
        return self.trainer.save()

    def begin(self, resume: bool, restore_replay: str | None = None) -> int:
        """See `Trainer.begin`."""
        return self.trainer.begin(resume, restore_replay)

    def restore(self) -> int:
        """See `Trainer.restore`."""
        return self.trainer.restore()

    def close(self) -> None:
        """Release rings, locks and checkpoints; the loops have ended before."""
        self.trainer.close()
        self.shared.close()

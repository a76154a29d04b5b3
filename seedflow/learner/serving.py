"""The acting half of a learner: the inference loop and what it alone owns."""

from __future__ import annotations

from collections.abc import Callable

from seedflow.algos import Algorithm
from seedflow.config import Config
from seedflow.learner.inference import InferenceLoop
from seedflow.learner.recording import ChunkRecorder, Recorder, UnrollRecorder
from seedflow.learner.shared import Shared
from seedflow.metrics import Metrics, Rate
from seedflow.metrics.bottleneck import IDLE, STARVED
from seedflow.nested import Arrays, nest, part
from seedflow.replay.arrival import Arrivals
from seedflow.rollout import StateTable, UnrollStorage
from seedflow.rpc.leases import Lease
from seedflow.rpc.transport import LearnerTransport


class Serving:
    """Answers every actor of the run with actions, and fills unrolls.

    Parameters
    ----------
    config
        The run's config.
    algorithm
        Its acting half chooses the actions.
    shared
        Where weights come from and unrolls go.
    transport
        Where actors ring.
    report
        Called with a line about something that a person should know.
    silent
        Called with a lease from which nothing was heard for too long.

    Attributes
    ----------
    inference
        The loop.
    metrics
        Its measurements.
    """

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        shared: Shared,
        transport: LearnerTransport,
        report: Callable[[str], None],
        silent: Callable[[Lease], None],
    ) -> None:
        self.metrics = Metrics()
        self._shared, self._transport = shared, transport
        self._rates = [
            Rate("steps/agent", "rate/agent_steps_per_second"),
            Rate("steps/env_frames", "rate/env_frames_per_second"),
            Rate("train/updates", "rate/updates_per_second"),
            Rate("inference/idle_seconds", IDLE),
            Rate("inference/wait_slots_seconds", STARVED),
        ]
        rows = transport.slab.blocks * transport.slab.layout.rows
        self._recorder = _recorder(config, shared, rows, report)
        self._states = StateTable(algorithm.state_specs, rows, shared.device)
        forward = shared.backend.forward(
            transport.slab,
            config,
            algorithm.acting,
            shared.weights.networks(algorithm.learning.network),
            self._states,
            self._recorder,
            report,
        )
        self.inference = InferenceLoop(
            transport,
            forward,
            self._recorder,
            shared.progress,
            self.metrics,
            config,
            report,
            silent,
        )

    def wake(self) -> None:
        """Make the loop look up, to see that it shall stop."""
        self._transport.wake()

    def state(self) -> Arrays:
        """Between two steps of the loop: what it owns, see `seedflow.nested`."""
        return nest(states=self._states.state(), inference=self.inference.state())

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave; every group of every actor has rung, and nothing was served."""
        self._states.go_on_from(part(arrays, "states"))
        self.inference.go_on_from(part(arrays, "inference"))

    def measure(self, trained: dict[str, float]) -> dict[str, float]:
        """Everything measured since the last call, by metric name; `trained` is what the trainer measured."""
        metrics, progress = self.metrics, self._shared.progress
        metrics.set("steps/agent", progress.agent_steps)
        metrics.set("steps/env_frames", progress.env_frames)
        metrics.set("steps/trained", progress.trained_steps)
        metrics.set("train/updates", progress.updates)
        metrics.set("slots/free", self._recorder.idle)
        metrics.set("queue/unrolls", self._recorder.waiting)
        metrics.set("time/seconds", progress.seconds)
        for name, value in self._transport.metrics().items():
            metrics.set(name, value)
        values = metrics.snapshot() | trained
        for rate in self._rates:
            values |= rate.of(values)
        return values


def _recorder(config: Config, shared: Shared, rows: int, report: Callable[[str], None]) -> Recorder:
    """What writes the run's experience; says how much memory it takes."""
    experience = shared.experience
    if isinstance(experience, Arrivals):
        spec = experience.spec
        nbytes = sum(array.nbytes for array in (*experience.fields.values(), *experience.state))
        report(f"{experience.buffers} chunk buffers of {spec.rows} steps take {nbytes / 2**20:.1f} MiB")
        return ChunkRecorder(experience)
    storage = experience.storage
    nbytes = UnrollStorage.nbytes(
        storage.field_specs, storage.state_specs, config.slots, config.rollout.unroll
    )
    report(
        f"{config.slots} unroll slots of {config.rollout.unroll + 1} steps take {nbytes / 2**20:.1f} MiB "
        f"on {storage.device}"
    )
    return UnrollRecorder(rows, storage, experience.finished, experience.freed, config.train.batch)

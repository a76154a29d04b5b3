"""The learner: everything that is neither an environment nor a socket, put together.

`Learner` owns the three loops (inference, prefetch, training) and what they share. They are objects with
a non-blocking `step`; `threads` drives them by one thread each, the one-process runtime in a fixed order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from seedflow.algos import make_algorithm
from seedflow.config import Config
from seedflow.errors import CheckpointError
from seedflow.learner.checkpoint import Checkpoint, CheckpointStore
from seedflow.learner.inference import InferenceLoop
from seedflow.learner.prefetch import PrefetchLoop
from seedflow.learner.progress import Progress
from seedflow.learner.training import TrainingLoop
from seedflow.learner.weights import PublishedWeights
from seedflow.metrics import Metrics, Rate
from seedflow.rollout import IndexRing, SlotPool, StateTable, UnrollStorage
from seedflow.rpc.leases import Lease
from seedflow.rpc.slab import COUNTED_SCALARS, REPLY_SCALARS, REQUEST_SCALARS
from seedflow.rpc.transport import LearnerTransport
from seedflow.specs import ArraySpec, EnvSpec


class Learner:
    """All loops of a run and what they share.

    Parameters
    ----------
    config, spec
        The run's config and the environments' spec.
    transport
        Where actors ring.
    run_dir
        Where checkpoints go.
    report
        Called with a line about something that a person should know.
    silent
        Called with the lease of an actor of which nothing was heard for too long.

    Attributes
    ----------
    inference, prefetch, training
        The loops.
    batches
        The preallocated batches that prefetch fills and training empties.
    progress, metrics
        Counters and measurements.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        transport: LearnerTransport,
        run_dir: Path,
        report: Callable[[str], None],
        silent: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.config, self.report = config, report
        self.metrics = Metrics()
        self.progress = Progress()
        self.algorithm = make_algorithm(config, spec)
        self._transport, self._spec = transport, spec
        self._store = CheckpointStore(run_dir / "checkpoints", config.checkpoint.keep)
        self._rates = [
            Rate("steps/agent", "rate/agent_steps_per_second"),
            Rate("steps/env_frames", "rate/env_frames_per_second"),
            Rate("train/updates", "rate/updates_per_second"),
        ]
        device = self.algorithm.learning.parameters.parameter.device

        fields = recorded_fields(spec, self.algorithm.acting.record_specs)
        state_specs = self.algorithm.state_specs
        unroll, batch, slots = config.rollout.unroll, config.train.batch, config.slots
        nbytes = UnrollStorage.nbytes(fields, state_specs, slots, unroll)
        report(f"{slots} unroll slots of {unroll + 1} steps take {nbytes / 2**20:.1f} MiB on {device}")
        storage = UnrollStorage(fields, state_specs, slots, unroll, device)
        rows = transport.slab.blocks * transport.slab.layout.rows
        self._pool = SlotPool(rows, slots, unroll)
        self._unrolls, self._freed = IndexRing(slots), IndexRing(slots)
        self.batches = [storage.new_batch(batch) for _ in range(config.rollout.prefetch + 1)]
        self._filled, self._empty = IndexRing(len(self.batches)), IndexRing(len(self.batches))
        self._empty.put(range(len(self.batches)))
        self._weights = PublishedWeights(self.algorithm.learning.network, self.algorithm.learning.parameters)
        self.inference = InferenceLoop(
            transport,
            self.algorithm.acting,
            self._weights,
            StateTable(state_specs, rows, device),
            self._pool,
            storage,
            self._unrolls,
            self._freed,
            self.progress,
            self.metrics,
            config,
            report,
            silent,
        )
        self.prefetch = PrefetchLoop(
            storage,
            batch,
            self._unrolls,
            self._freed,
            self.batches,
            self._filled,
            self._empty,
            transport.wake,
        )
        self.training = TrainingLoop(
            self.algorithm.learning,
            self._weights,
            self.batches,
            self._filled,
            self._empty,
            self.progress,
            self.metrics,
            config.train,
        )
        self._saved_at = time.monotonic()

    @property
    def done(self) -> bool:
        """Whether the run has taken all its steps."""
        return self.progress.agent_steps >= self.config.train.total_agent_steps

    def wake(self) -> None:
        """Make every waiting loop look up, to see that it shall stop."""
        self._transport.wake()
        for ring in (self._unrolls, self._empty, self._filled):
            ring.wake()

    def measure(self) -> dict[str, float]:
        """Everything measured since the last call, by metric name."""
        metrics, progress = self.metrics, self.progress
        metrics.set("steps/agent", progress.agent_steps)
        metrics.set("steps/env_frames", progress.env_frames)
        metrics.set("steps/trained", progress.trained_steps)
        metrics.set("train/updates", progress.updates)
        metrics.set("slots/free", self._pool.free)
        metrics.set("queue/unrolls", len(self._unrolls))
        metrics.set("time/seconds", progress.seconds)
        for name, value in self._transport.metrics().items():
            metrics.set(name, value)
        values = metrics.snapshot()
        for rate in self._rates:
            values |= rate.of(values)
        return values

    def save_if_due(self) -> None:
        """Save a checkpoint when `checkpoint.every_seconds` have passed since the last one."""
        if time.monotonic() - self._saved_at >= self.config.checkpoint.every_seconds:
            self.save()

    def save(self) -> int:
        """Save a checkpoint; called by whoever drives the training loop. Returns its generation."""
        learning = self.algorithm.learning
        weights = {f"weights/{k}": v for k, v in learning.network.state_dict().items()}
        rest = {f"learning/{k}": v for k, v in learning.tensors().items()}
        sampling = {"random/sampling": self.algorithm.acting.generator.get_state()}
        state = {"progress": self.progress.to_json(), "spec": self._spec.to_json()}
        generation = self._store.save({**weights, **rest, **sampling}, state)
        self._saved_at = time.monotonic()
        return generation

    def restore(self) -> int:
        """Go on from the newest checkpoint; returns its generation.

        Raises
        ------
        CheckpointError
            When there is none, or when its tensors are not those of this config.
        """
        checkpoint = self._store.load()
        learning = self.algorithm.learning
        check_weights(checkpoint, learning.network.state_dict())
        with torch.no_grad():
            for name, value in learning.network.state_dict().items():
                value.copy_(checkpoint.tensors[f"weights/{name}"])
        learning.restore(checkpoint.section("learning"))
        self.algorithm.acting.generator.set_state(checkpoint.tensors["random/sampling"])
        self.progress.__dict__.update(Progress.from_json(checkpoint.state["progress"]).__dict__)
        self._weights.publish(learning.parameters.parameter.detach(), self.progress.updates)
        self.report(
            f"resumed generation {checkpoint.generation}: {self.progress.agent_steps} agent steps, "
            f"{self.progress.updates} updates"
        )
        return checkpoint.generation

    def close(self) -> None:
        """Release the rings; the loops have ended before."""
        for ring in (self._unrolls, self._freed, self._filled, self._empty):
            ring.close()


def recorded_fields(spec: EnvSpec, record: tuple[ArraySpec, ...]) -> tuple[ArraySpec, ...]:
    """The fields that an unroll keeps per index, in order."""
    inputs = [field for field in REQUEST_SCALARS if field.name not in COUNTED_SCALARS]
    version = ArraySpec("version", (), np.dtype(np.int64))
    return (*spec.observation, *inputs, *REPLY_SCALARS, version, *record)


def check_weights(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    """Refuse a checkpoint whose weights do not fit a network."""
    found = checkpoint.section("weights")
    for name, value in expected.items():
        if name not in found:
            raise CheckpointError(
                f"generation {checkpoint.generation} has no weight {name!r}, which this config's network has "
                "; resume with the network settings of the run"
            )
        if found[name].shape != value.shape:
            raise CheckpointError(
                f"weight {name!r} of generation {checkpoint.generation} has shape {tuple(found[name].shape)}"
                f", this config's network expects {tuple(value.shape)}; "
                "resume with the run's network settings"
            )
    extra = sorted(set(found) - set(expected))
    if extra:
        raise CheckpointError(
            f"generation {checkpoint.generation} has weights that this config's network lacks: {extra}"
        )

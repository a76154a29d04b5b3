"""The training half of a learner: prefetch loop, training loop, and the run's checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from seedflow.algos import Algorithm
from seedflow.config import Config
from seedflow.errors import CheckpointConflict, CheckpointError
from seedflow.learner.arena import Arena
from seedflow.learner.checkpoint import Checkpoint, CheckpointStore
from seedflow.learner.prefetch import PrefetchLoop
from seedflow.learner.shared import Shared
from seedflow.learner.training import TrainingLoop
from seedflow.metrics import Metrics
from seedflow.specs import EnvSpec

SAMPLING = "random/sampling"


class Trainer:
    """Turns finished unrolls into published weights, and saves them.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    algorithm
        Its learning half is trained.
    shared
        Where unrolls come from and weights go.
    run_dir
        Where checkpoints go.
    slots_freed
        Called after slots were freed: inference may be waiting for them.
    report
        Called with a line about something that a person should know.
    acts_here
        Whether inference uses this very algorithm object: its random state then belongs to a checkpoint.

    Attributes
    ----------
    prefetch, training
        The loops.
    batches
        The preallocated batches that prefetch fills and training empties.
    metrics
        Measurements of the two loops.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        algorithm: Algorithm,
        shared: Shared,
        run_dir: Path,
        slots_freed: Callable[[], None],
        report: Callable[[str], None],
        acts_here: bool = True,
    ) -> None:
        self.report, self.metrics = report, Metrics()
        self._config, self._spec, self._algorithm, self._shared = config, spec, algorithm, shared
        self._acts_here = acts_here
        self._store = CheckpointStore(run_dir / "checkpoints", config.checkpoint.keep)
        predecessor = self._store.lock()
        if predecessor is not None:
            report(f"{predecessor} wrote checkpoints here before and has ended without a word")
        storage, batch = shared.storage, config.train.batch
        self.batches = [storage.new_batch(batch) for _ in range(config.rollout.prefetch + 1)]
        backend, own = shared.backend, Arena(storage.device)
        self._filled = backend.ring(own, len(self.batches), "prefetch", "training")
        self._empty = backend.ring(own, len(self.batches), "training", "prefetch")
        self._stream = backend.stream("training")
        self._empty.put(range(len(self.batches)))
        self.prefetch = PrefetchLoop(
            storage,
            batch,
            shared.unrolls,
            shared.freed,
            self.batches,
            self._filled,
            self._empty,
            slots_freed,
            backend.stream("prefetch"),
        )
        self.training = TrainingLoop(
            algorithm.learning,
            shared.weights,
            self.batches,
            self._filled,
            self._empty,
            shared.progress,
            self.metrics,
            config.train,
            self._stream,
        )
        self._saved_at = time.monotonic()
        self._publish()

    def wake(self) -> None:
        """Make both loops look up, to see that they shall stop."""
        for ring in (self._shared.unrolls, self._empty, self._filled):
            ring.wake()

    def train(self) -> bool:
        """One step of the training loop, and a checkpoint if one is due."""
        trained = self.training.step()
        if trained:
            self.save_if_due()
        return trained

    def save_if_due(self) -> None:
        """Save a checkpoint when `checkpoint.every_seconds` have passed since the last one.

        One that cannot be written, on a full disk, say, is reported and tried again after as long a pause.

        Raises
        ------
        CheckpointConflict
            When another process saves to the same place: the two runs must not both go on.
        """
        if time.monotonic() - self._saved_at < self._config.checkpoint.every_seconds:
            return
        try:
            self.save()
        except CheckpointConflict:
            raise
        except CheckpointError as error:
            self._saved_at = time.monotonic()
            self.report(f"the run goes on without a new checkpoint: {error}")

    def save(self) -> int:
        """Save a checkpoint; called by whoever drives the training loop. Returns its generation."""
        with self._stream.scope():
            return self._save()

    def _save(self) -> int:
        learning = self._algorithm.learning
        tensors = {f"weights/{k}": v for k, v in learning.network.state_dict().items()}
        tensors |= {f"learning/{k}": v for k, v in learning.tensors().items()}
        if self._acts_here:
            tensors[SAMPLING] = self._algorithm.acting.generator.get_state()
        state = {"progress": self._shared.progress.to_json(), "spec": self._spec.to_json()}
        generation = self._store.save(tensors, state)
        self._saved_at = time.monotonic()
        return generation

    def restore(self) -> int:
        """Go on from the newest checkpoint that is whole; returns its generation.

        Raises
        ------
        CheckpointError
            When there is none, or when its tensors are not those of this config.
        """
        checkpoint = self._store.restore()
        for reason in checkpoint.skipped:
            self.report(f"skipped {reason}")
        learning, progress = self._algorithm.learning, self._shared.progress
        check_weights(checkpoint, learning.network.state_dict())
        with self._stream.scope(), torch.no_grad():
            for name, value in learning.network.state_dict().items():
                value.copy_(checkpoint.tensors[f"weights/{name}"])
            learning.restore(checkpoint.section("learning"))
        if self._acts_here and SAMPLING in checkpoint.tensors:
            self._algorithm.acting.generator.set_state(checkpoint.tensors[SAMPLING])
        progress.go_on_from(checkpoint.state["progress"])
        self._publish()
        self.report(
            f"resumed generation {checkpoint.generation}: {progress.agent_steps} agent steps, "
            f"{progress.updates} updates"
        )
        return checkpoint.generation

    def close(self) -> None:
        """Release the rings and the checkpoints; the loops have ended before."""
        self._store.unlock()
        for ring in (self._filled, self._empty):
            ring.close()

    def _publish(self) -> None:
        flat = self._algorithm.learning.parameters.parameter.detach()
        self._shared.weights.publish(flat, self._shared.progress.updates)


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

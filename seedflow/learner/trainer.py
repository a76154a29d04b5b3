"""The training half of a learner: prefetch loop, training loop, and the run's checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from seedflow.algos import Algorithm
from seedflow.checkpoints import BackgroundSave, Writer
from seedflow.config import Config
from seedflow.errors import CheckpointConflict, CheckpointError
from seedflow.learner.checkpoint import Checkpoint, CheckpointStore, ReplayWanted
from seedflow.learner.pipelines import ReplayPipeline, UnrollPipeline, make_pipeline
from seedflow.learner.shared import Shared
from seedflow.metrics import Metrics
from seedflow.nested import Arrays
from seedflow.replay.disk.load import LoadedReplay
from seedflow.replay.replay import Replay
from seedflow.specs import EnvSpec

SAMPLING = "random/sampling"
EXACT = "exact"
SAVE_SECONDS = 600.0
"""How long a checkpoint that is being written is waited for."""


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
    buffers_freed
        Called after slots or chunk buffers were freed: inference may be waiting for them.
    report
        Called with a line about something that a person should know.
    acts_here
        Whether inference uses this very algorithm object: its random state then belongs to a checkpoint.
    writer
        Who saves: which start of which run's learner. Default: this process, in no run on a cluster.

    Attributes
    ----------
    pipeline
        The loops and what is between them.
    prefetch, training
        The loops.
    metrics
        Measurements of the two loops.
    exactly
        Gives, while it is set, what checkpoints hold beside the rest so that a run in one process can go on
        exactly: settings that must be the same, and arrays.
    restored
        The checkpoint that was restored.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        algorithm: Algorithm,
        shared: Shared,
        run_dir: Path,
        buffers_freed: Callable[[], None],
        report: Callable[[str], None],
        acts_here: bool = True,
        writer: Writer | None = None,
    ) -> None:
        self.report, self.metrics = report, Metrics()
        self.exactly: Callable[[], tuple[dict[str, Any], Arrays]] | None = None
        self.restored: Checkpoint | None = None
        self._config, self._spec, self._algorithm, self._shared = config, spec, algorithm, shared
        self._acts_here = acts_here
        self._store = CheckpointStore(run_dir / "checkpoints", config.checkpoint.keep, writer)
        self._again = writer is not None and writer.generation > 0
        predecessor = self._store.lock()
        if predecessor is not None:
            report(f"{predecessor} wrote checkpoints here before and has ended without a word")
        self.pipeline = make_pipeline(config, algorithm.learning, shared, self.metrics, buffers_freed, report)
        self.prefetch, self.training = self.pipeline.prefetch, self.pipeline.training
        self._saving = BackgroundSave()
        self._stream = shared.backend.stream("training")
        self._saved_at = time.monotonic()
        self._publish()

    def wake(self) -> None:
        """Make both loops look up, to see that they shall stop."""
        self.pipeline.wake()

    def measure(self) -> dict[str, float]:
        """Everything measured since the last call, by metric name."""
        return self.metrics.snapshot() | self.pipeline.measure()

    def train(self) -> bool:
        """One step of the training loop, and a checkpoint if one is due."""
        trained = self.training.step()
        if trained:
            self.save_if_due()
        return trained

    @property
    def fetches_quickly(self) -> bool:
        """Whether a batch is but a copy within the CPU's memory."""
        return isinstance(self.pipeline, UnrollPipeline) and self._shared.device.type == "cpu"

    def fetch_and_train(self) -> bool:
        """One step of either loop; returns whether there was anything to do."""
        fetched = self.prefetch.step()
        return self.train() or fetched

    def save_if_due(self) -> None:
        """Save a checkpoint when `checkpoint.every_seconds` have passed since the last one.

        With a replay, which may be large, training goes on while it is written: only a copy of the weights is
        made at once. One that cannot be written, on a full disk, say, is reported and tried again after as
        long a pause.

        Raises
        ------
        CheckpointConflict
            When another process saves to the same place: the two runs must not both go on.
        """
        if self._saving.busy:
            return
        with self._reported():
            self._saving.result(0.0)  # of the one before
        if time.monotonic() - self._saved_at < self._config.checkpoint.every_seconds:
            return
        self._saved_at = time.monotonic()
        if isinstance(self.pipeline, ReplayPipeline):
            self._saving.start(self._prepared())
            return
        with self._reported():
            self._prepared()()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report a checkpoint that could not be written; another writer's is an error."""
        try:
            yield
        except CheckpointConflict:
            raise
        except CheckpointError as error:
            self.report(f"the run goes on without a new checkpoint: {error}")

    def save(self) -> int:
        """Save a checkpoint; called by whoever drives the training loop. Returns its generation."""
        with self._reported():
            self._saving.result(SAVE_SECONDS)
        generation = self._prepared()()
        self._saved_at = time.monotonic()
        return generation

    def _prepared(self) -> Callable[[], int]:
        """A save of what is there now, whatever happens to it until it is written."""
        with self._stream.scope():
            return self._copied()

    def _copied(self) -> Callable[[], int]:
        learning = self._algorithm.learning
        tensors = {f"weights/{k}": v for k, v in learning.network.state_dict().items()}
        tensors |= {f"learning/{k}": v for k, v in learning.tensors().items()}
        if self._acts_here:
            tensors[SAMPLING] = self._algorithm.acting.generator.get_state()
        state = {"progress": self._shared.progress.to_json(), "spec": self._spec.to_json()}
        if self.exactly is not None:
            state[EXACT], arrays = self.exactly()
            tensors |= {f"{EXACT}/{name}": torch.from_numpy(array) for name, array in arrays.items()}
        replay = self.pipeline.replay.snapshot() if isinstance(self.pipeline, ReplayPipeline) else None
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        return lambda: self._store.save(copies, state, replay)

    def begin(self, resume: bool, restore_replay: str | None = None) -> int:
        """Begin with what there is.

        Parameters
        ----------
        resume
            Go on from the newest checkpoint. A learner that is started again does so anyway, where there is
            one.
        restore_replay
            Otherwise, a run or its checkpoints (a path or URL) whose replay to begin with.

        Returns
        -------
        int
            The generation that it goes on from, 0 for a new run.

        Raises
        ------
        CheckpointError
            See `restore` and `restore_replay`.
        """
        if resume or (self._again and self._store.generations()):
            return self.restore()
        if restore_replay is not None:
            self.restore_replay(restore_replay)
        return 0

    def restore(self) -> int:
        """Go on from the newest checkpoint that is whole; returns its generation.

        Raises
        ------
        CheckpointError
            When there is none, or when its tensors are not those of this config.
        """
        pipeline = self.pipeline
        wanted = None
        if isinstance(pipeline, ReplayPipeline):
            replay = pipeline.replay
            wanted = ReplayWanted(replay.spec, self._config.replay, replay.memory.limit)
        checkpoint = self.restored = self._store.restore(wanted)
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
        if isinstance(pipeline, ReplayPipeline) and checkpoint.replay is not None:
            self._fill(pipeline.replay, checkpoint.replay)
        progress.go_on_from(checkpoint.state["progress"])
        self._publish()
        held = f", {len(pipeline.replay)} sequences" if isinstance(pipeline, ReplayPipeline) else ""
        self.report(
            f"resumed generation {checkpoint.generation}: {progress.agent_steps} agent steps, "
            f"{progress.updates} updates{held}"
        )
        return checkpoint.generation

    def restore_replay(self, checkpoints: str) -> None:
        """Begin with the replay of another run's newest checkpoint that is whole.

        Raises
        ------
        CheckpointError
            When there is none, or it holds other arrays than this run's.
        """
        pipeline = self.pipeline
        if not isinstance(pipeline, ReplayPipeline):
            raise CheckpointError(
                f"algo.name = {self._config.algo.name!r} learns without a replay; to begin with that of "
                f"{checkpoints}, choose an algorithm that has one (algo.name=r2d2)"
            )
        replay = pipeline.replay
        wanted = ReplayWanted(replay.spec, self._config.replay, replay.memory.limit)
        loaded = CheckpointStore(checkpoints).load_replay(wanted)
        self._fill(replay, loaded)
        self.report(f"the replay begins with {len(replay)} sequences of {checkpoints}")

    def _fill(self, replay: Replay, loaded: LoadedReplay) -> None:
        replay.restore(loaded.snapshot)
        for problem in loaded.problems:
            self.report(f"replay: {problem}")
        if loaded.lost_sequences:
            self.report(f"replay: {loaded.lost_sequences} sequences are lost (replay.on_damage=drop)")
        if loaded.left_out:
            self.report(f"replay: there is no room for the {loaded.left_out} oldest sequences")

    def close(self) -> None:
        """Release the rings and the checkpoints; the loops have ended before."""
        with suppress(CheckpointError):
            self._saving.result(SAVE_SECONDS)
        self._store.unlock()
        self.pipeline.close()

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

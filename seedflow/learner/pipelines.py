"""From recorded experience to updates: the prefetch and training loops of each kind of algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from seedflow.algos import ReplayLearning, UnrollLearning
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.backend import Backend
from seedflow.learner.prefetch import PrefetchLoop
from seedflow.learner.sequences import ReplayBatch, ReplayPrefetch
from seedflow.learner.shared import Shared, Unrolls
from seedflow.learner.training import ReplayTraining, TrainingLoop, UnrollTraining
from seedflow.metrics import Metrics
from seedflow.nested import Arrays, nest, part
from seedflow.replay.arrival import Arrivals, InsertLoop
from seedflow.replay.replay import Replay
from seedflow.rollout import IndexRing
from seedflow.rollout.storage import UnrollBatch


class Pipeline(ABC):
    """Two loops and the batches that go round between them.

    Attributes
    ----------
    prefetch, training
        The loops.
    filled, empty
        Rings of the indices of batches between them.
    """

    prefetch: PrefetchLoop | ReplayPrefetch
    training: TrainingLoop

    def __init__(self, config: Config, backend: Backend) -> None:
        self.count = config.rollout.prefetch + 1
        own = Arena(torch.device("cpu"))
        self.filled = backend.ring(own, self.count, "prefetch", "training")
        self.empty = backend.ring(own, self.count, "training", "prefetch")
        self.empty.put(range(self.count))

    @property
    @abstractmethod
    def source(self) -> IndexRing:
        """Where experience comes from."""

    def wake(self) -> None:
        """Make both loops look up, to see that they shall stop."""
        for ring in (self.source, self.empty, self.filled):
            ring.wake()

    def measure(self) -> dict[str, float]:
        """What else there is to record, by metric name."""
        return {}

    def state(self) -> Arrays:
        """What a checkpoint leaves out, where every batch has been trained on; see `seedflow.nested`."""
        return {}

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave, after the checkpoint was restored."""
        assert not arrays

    def close(self) -> None:
        """Release what the loops used; they have ended before."""
        for ring in (self.filled, self.empty):
            ring.close()


class UnrollPipeline(Pipeline):
    """Every unroll is trained on once.

    Parameters
    ----------
    config, learning, shared, metrics
        Of the trainer.
    unrolls
        Where they come from.
    freed
        Called after slots went back: inference may be waiting for them.

    Attributes
    ----------
    batches
        The preallocated batches.
    """

    def __init__(
        self,
        config: Config,
        learning: UnrollLearning,
        shared: Shared,
        unrolls: Unrolls,
        metrics: Metrics,
        freed: Callable[[], None],
    ) -> None:
        super().__init__(config, shared.backend)
        self._unrolls = unrolls
        storage, batch = unrolls.storage, config.train.batch
        self.batches: list[UnrollBatch] = [storage.new_batch(batch) for _ in range(self.count)]
        self.prefetch = PrefetchLoop(
            storage,
            batch,
            unrolls.finished,
            unrolls.freed,
            self.batches,
            self.filled,
            self.empty,
            freed,
            shared.backend.stream("prefetch"),
        )
        self.training = UnrollTraining(
            learning,
            self.batches,
            shared.weights,
            self.filled,
            self.empty,
            shared.progress,
            metrics,
            config.train,
            shared.backend.stream("training"),
        )

    @property
    def source(self) -> IndexRing:
        return self._unrolls.finished


class ReplayPipeline(Pipeline):
    """Sequences of a replay are trained on by priority.

    Parameters
    ----------
    config, learning, shared, metrics
        Of the trainer.
    arrivals
        Where chunks come from.
    freed
        Called after chunk buffers went back: inference may be waiting for them.
    report
        Called with a line about something that a person should know.

    Attributes
    ----------
    replay
        The replay.
    batches
        The preallocated batches.
    """

    def __init__(
        self,
        config: Config,
        learning: ReplayLearning,
        shared: Shared,
        arrivals: Arrivals,
        metrics: Metrics,
        freed: Callable[[], None],
        report: Callable[[str], None],
    ) -> None:
        super().__init__(config, shared.backend)
        self._arrivals, spec, batch = arrivals, arrivals.spec, config.train.batch
        self.replay = Replay(spec, config.replay, config.seed, batch=batch, report=report)
        self.batches = [ReplayBatch(spec, batch, shared.device) for _ in range(self.count)]
        self._inserting = InsertLoop(arrivals, self.replay, learning.new_priorities(spec), freed)
        self.prefetch = ReplayPrefetch(
            self._inserting,
            arrivals,
            self.replay,
            self.batches,
            self.filled,
            self.empty,
            metrics,
            shared.backend.stream("prefetch"),
        )
        self.training = ReplayTraining(
            learning,
            self.batches,
            self.replay,
            shared.weights,
            self.filled,
            self.empty,
            shared.progress,
            metrics,
            config.train,
            shared.backend.stream("training"),
        )
        self._counted = (0.0, 0.0)

    @property
    def source(self) -> IndexRing:
        return self._arrivals.filled

    def measure(self) -> dict[str, float]:
        values = self.replay.metrics()
        counts = values["replay/inserted"], values["replay/sampled"]
        inserted, sampled = (now - before for now, before in zip(counts, self._counted, strict=True))
        self._counted = counts
        if inserted:
            values["replay/samples_per_insert"] = sampled / inserted
        return values

    def state(self) -> Arrays:
        return nest(lanes=self.replay.open_lanes(), inserting=self._inserting.state())

    def go_on_from(self, arrays: Arrays) -> None:
        self.replay.reopen(part(arrays, "lanes"))
        self._inserting.go_on_from(part(arrays, "inserting"))

    def close(self) -> None:
        super().close()
        self.replay.close()


def make_pipeline(
    config: Config,
    learning: UnrollLearning | ReplayLearning,
    shared: Shared,
    metrics: Metrics,
    freed: Callable[[], None],
    report: Callable[[str], None],
) -> UnrollPipeline | ReplayPipeline:
    """The pipeline that an algorithm needs."""
    experience = shared.experience
    if isinstance(learning, ReplayLearning):
        assert isinstance(experience, Arrivals)
        return ReplayPipeline(config, learning, shared, experience, metrics, freed, report)
    assert isinstance(experience, Unrolls)
    return UnrollPipeline(config, learning, shared, experience, metrics, freed)

"""The training loop: from batches to published weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.algos import Learning, ReplayLearning, UnrollLearning
from seedflow.config import TrainConfig
from seedflow.learner.progress import Progress
from seedflow.learner.sequences import ReplayBatch
from seedflow.learner.streams import Stream
from seedflow.learner.weights import Weights
from seedflow.metrics import Metrics
from seedflow.replay.replay import Replay
from seedflow.rollout import IndexRing
from seedflow.rollout.storage import UnrollBatch


class Trained(NamedTuple):
    """What an update measured, and on how many valid transitions it trained."""

    measured: dict[str, float]
    steps: int


class TrainingLoop(ABC):
    """Takes an optimizer step per batch and publishes the weights after each.

    Parameters
    ----------
    learning
        The algorithm's learning half.
    weights
        Where inference finds new versions.
    filled, empty
        Rings of the indices of batches, from and to the prefetch loop.
    progress, metrics, config
        Counters, where measurements go, and the `train` section.
    stream
        Where the work of training goes.
    """

    def __init__(
        self,
        learning: Learning,
        weights: Weights,
        filled: IndexRing,
        empty: IndexRing,
        progress: Progress,
        metrics: Metrics,
        config: TrainConfig,
        stream: Stream,
    ) -> None:
        self._parameters, self._weights = learning.parameters, weights
        self._filled, self._empty = filled, empty
        self._progress, self._metrics, self._config = progress, metrics, config
        self._stream = stream

    @abstractmethod
    def _update(self, index: int) -> Trained:
        """Train on the batch of an index."""

    @property
    def learning_rate(self) -> float:
        """The present learning rate: constant, or linear in agent steps."""
        start, end = self._config.learning_rate, self._config.final_learning_rate
        if self._config.learning_rate_decay == "none":
            return start
        done = min(1.0, self._progress.agent_steps / self._config.total_agent_steps)
        return start + (end - start) * done

    def step(self) -> bool:
        """Train on one batch if one is filled; returns whether it did."""
        taken = self._filled.take(1)
        if not taken:
            return False
        with self._stream.scope():
            self._train(taken)
        return True

    def _train(self, taken: list[int]) -> None:
        trained = self._update(taken[0])
        self._empty.put(taken)
        self._progress.updates += 1
        self._progress.trained_steps += trained.steps
        with torch.no_grad():
            self._weights.publish(self._parameters.parameter, self._progress.updates)
        for name, value in trained.measured.items():
            self._metrics.observe(name, value)

    def wait(self, timeout: float) -> None:
        """Wait for a batch."""
        self._filled.wait(timeout)


class UnrollTraining(TrainingLoop):
    """Trains on every unroll once.

    Parameters
    ----------
    learning
        The algorithm's learning half.
    batches
        The prefetch loop's batches.
    rest
        As of `TrainingLoop`, behind `learning`.
    """

    def __init__(
        self,
        learning: UnrollLearning,
        batches: list[UnrollBatch],
        weights: Weights,
        filled: IndexRing,
        empty: IndexRing,
        progress: Progress,
        metrics: Metrics,
        config: TrainConfig,
        stream: Stream,
    ) -> None:
        super().__init__(learning, weights, filled, empty, progress, metrics, config, stream)
        self._learning, self._batches = learning, batches

    def _update(self, index: int) -> Trained:
        batch = self._batches[index]
        lag = self._progress.updates - batch.fields["version"][:-1]
        steps = _valid(batch.fields["first"][1:])
        measured = self._learning.update(batch, self.learning_rate)
        self._metrics.observe("lag/policy_versions", lag.cpu().numpy())
        return Trained(measured, steps)


class ReplayTraining(TrainingLoop):
    """Trains on sequences of a replay and gives them their new priorities.

    Parameters
    ----------
    learning
        The algorithm's learning half.
    batches
        The prefetch loop's batches.
    replay
        Where the sequences come from.
    rest
        As of `TrainingLoop`, behind `learning`.
    """

    def __init__(
        self,
        learning: ReplayLearning,
        batches: list[ReplayBatch],
        replay: Replay,
        weights: Weights,
        filled: IndexRing,
        empty: IndexRing,
        progress: Progress,
        metrics: Metrics,
        config: TrainConfig,
        stream: Stream,
    ) -> None:
        super().__init__(learning, weights, filled, empty, progress, metrics, config, stream)
        self._learning, self._batches, self._replay = learning, batches, replay

    def _update(self, index: int) -> Trained:
        batch = self._batches[index]
        steps = _valid(batch.unrolls.fields["first"][self._replay.spec.burn_in + 1 :])
        updated = self._learning.update(batch.unrolls, batch.weights, self.learning_rate)
        priorities = updated.priorities.cpu().numpy().astype(np.float64)
        self._replay.update_priorities(batch.generations, priorities)
        return Trained(updated.diagnostics, steps)


def _valid(first: Tensor) -> int:
    return int((~first).sum())

"""The training loop: from batches to published weights."""

from __future__ import annotations

import torch

from seedflow.algos import Learning
from seedflow.config import TrainConfig
from seedflow.learner.progress import Progress
from seedflow.learner.streams import Stream
from seedflow.learner.weights import Weights
from seedflow.metrics import Metrics
from seedflow.rollout import IndexRing
from seedflow.rollout.storage import UnrollBatch


class TrainingLoop:
    """Takes an optimizer step per batch and publishes the weights after each.

    Parameters
    ----------
    learning
        The algorithm's learning half.
    weights
        Where inference finds new versions.
    batches, filled, empty
        The prefetch loop's batches and the rings of their indices.
    progress, metrics, config
        Counters, where measurements go, and the `train` section.
    stream
        Where the work of training goes.
    """

    def __init__(
        self,
        learning: Learning,
        weights: Weights,
        batches: list[UnrollBatch],
        filled: IndexRing,
        empty: IndexRing,
        progress: Progress,
        metrics: Metrics,
        config: TrainConfig,
        stream: Stream,
    ) -> None:
        self._learning, self._weights = learning, weights
        self._batches, self._filled, self._empty = batches, filled, empty
        self._progress, self._metrics, self._config = progress, metrics, config
        self._stream = stream

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
        batch = self._batches[taken[0]]
        lag = self._progress.updates - batch.fields["version"][:-1]
        trained = int((~batch.fields["first"][1:]).sum())
        measured = self._learning.update(batch, self.learning_rate)
        self._empty.put(taken)
        self._progress.updates += 1
        self._progress.trained_steps += trained
        with torch.no_grad():
            self._weights.publish(self._learning.parameters.parameter, self._progress.updates)
        for name, value in measured.items():
            self._metrics.observe(name, value)
        self._metrics.observe("lag/policy_versions", lag.cpu().numpy())

    def wait(self, timeout: float) -> None:
        """Wait for a batch."""
        self._filled.wait(timeout)

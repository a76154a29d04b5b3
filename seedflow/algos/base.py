"""What an algorithm is: how it acts, what it records while acting, and how it learns.

Acting and learning meet only in the recorded fields: acting names what it stores at every index beside
the environment's own arrays, learning finds these names in its batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seedflow.networks.cores import State
from seedflow.networks.flat import FlatParameters
from seedflow.networks.trunk import NetworkInput
from seedflow.replay.arrival import InitialPriority
from seedflow.replay.layout import ReplaySpec
from seedflow.rollout.storage import UnrollBatch
from seedflow.specs import ArraySpec


@dataclass(frozen=True)
class ActingInput:
    """One step of n environments.

    Attributes
    ----------
    observation
        Leaves ``[n, ...]``.
    reward, first
        float32 and bool, ``[n]``.
    greedy
        bool ``[n]``: act without exploring; None: nobody does.
    env_ids
        int64 ``[n]``: the ids of training environments, -1 for all others; None: there are only others.
    """

    observation: tuple[Tensor, ...]
    reward: Tensor
    first: Tensor
    greedy: Tensor | None = None
    env_ids: Tensor | None = None

    def for_network(self) -> NetworkInput:
        """What a network takes, as a sequence of one index."""
        return NetworkInput(
            tuple(leaf.unsqueeze(0) for leaf in self.observation),
            self.reward.unsqueeze(0),
            self.first.unsqueeze(0),
        )


@dataclass(frozen=True)
class ActingOutput:
    """Actions int64 ``[n]``, the recorded fields ``[n, ...]`` by name, and the next core state."""

    action: Tensor
    record: dict[str, Tensor]
    state: State


class Acting(ABC):
    """How an algorithm chooses actions.

    Attributes
    ----------
    record_specs
        Fields stored at every index beside observation, reward, flags and action.
    """

    record_specs: tuple[ArraySpec, ...]

    @abstractmethod
    def act(self, network: nn.Module, inputs: ActingInput, state: State) -> ActingOutput:
        """Choose actions; runs under `torch.inference_mode`."""

    @property
    @abstractmethod
    def generator(self) -> torch.Generator:
        """The source of randomness, saved in checkpoints."""


class Learning(ABC):
    """How an algorithm turns batches into better weights: `UnrollLearning` or `ReplayLearning`.

    Attributes
    ----------
    parameters
        The weights that are trained, flat.
    """

    network: nn.Module
    parameters: FlatParameters

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything beside the weights that a checkpoint must hold: optimizer state, multipliers."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave."""


class UnrollLearning(Learning):
    """Learns from every unroll once, as it comes."""

    @abstractmethod
    def update(self, batch: UnrollBatch, learning_rate: float) -> dict[str, float]:
        """Take one optimizer step; returns diagnostics under ``loss/...``."""


@dataclass(frozen=True)
class SequenceUpdate:
    """What came of an optimizer step on sequences.

    Attributes
    ----------
    diagnostics
        Under ``loss/...``.
    priorities
        Of the batch's sequences, before the exponent, float32 ``[B]``.
    """

    diagnostics: dict[str, float]
    priorities: Tensor


class ReplayLearning(Learning):
    """Learns from sequences that a replay gives out by priority, again and again.

    Attributes
    ----------
    passing_specs
        Those of the acting's recorded fields that the replay does not keep: only `new_priorities` sees them.
    """

    passing_specs: tuple[ArraySpec, ...]

    @abstractmethod
    def update(self, batch: UnrollBatch, weights: Tensor, learning_rate: float) -> SequenceUpdate:
        """Take one optimizer step.

        Parameters
        ----------
        batch
            Sequences, each from its beginning; `UnrollBatch.state` was fed there.
        weights
            Importance weights, float32 ``[B]``.
        """

    @abstractmethod
    def new_priorities(self, spec: ReplaySpec) -> InitialPriority:
        """What gives new sequences their priorities."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm ready to run on one kind of environment."""

    acting: Acting
    learning: UnrollLearning | ReplayLearning
    state_specs: tuple[ArraySpec, ...]

"""What an inference batch does with arrays: from the rows of its groups to their actions and unrolls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seedflow.algos import Acting, ActingInput
from seedflow.learner.recording import Recorder
from seedflow.learner.staging import Group, Staging
from seedflow.rollout import StateTable
from seedflow.rollout.state_table import zeros
from seedflow.rollout.storage import VERSION
from seedflow.rpc.slab import REPLY_SCALARS, Slab

HostRows = Mapping[str, NDArray[Any]]


class ServedBatch(NamedTuple):
    """The groups of one inference batch, n environments together.

    Attributes
    ----------
    places
        Where their rows are in the slab.
    rows
        Row of the state table of each environment, ``[n]``.
    trained, trained_rows
        The places in the batch whose indices are recorded, and their rows.
    greedy
        Who acts without exploring, bool ``[n]``; None: nobody does.
    env_ids
        The ids of training environments, -1 for all others, ``[n]``.
    """

    places: list[Group]
    rows: NDArray[np.int64]
    trained: NDArray[np.int64]
    trained_rows: NDArray[np.int64]
    greedy: NDArray[np.bool_] | None
    env_ids: NDArray[np.int64]


class ActingNetworks(Protocol):
    """Where a batch finds the newest weights: `PinnedNetworks`, or on a GPU `LiveNetwork`."""

    def pin(self) -> tuple[nn.Module, int]:
        """The newest network and its version, safe from changes until the next call."""


class Forward(ABC):
    """One batch after the other: `run`, `store_actions`, `hand_over`."""

    @abstractmethod
    def run(self, batch: ServedBatch) -> HostRows:
        """Copy the rows, act and record.

        Returns
        -------
        mapping
            Reward, ``first`` and what else is counted of each environment, ``[n]``, until the next call.
        """

    @abstractmethod
    def store_actions(self, batch: ServedBatch) -> None:
        """Write the actions into the slab. Nothing reads the rows of the batch any more when it returns."""

    @abstractmethod
    def hand_over(self) -> None:
        """Hand finished unrolls to the prefetch loop."""


class DirectForward(Forward):
    """Does all at once, operation by operation.

    Parameters
    ----------
    slab, max_batch
        Where rows come from, and how many at most.
    acting, networks
        The algorithm's acting half, and what it acts with.
    states, recorder
        State table, and what writes down what the environments do.
    device
        Where the network acts.
    """

    def __init__(
        self,
        slab: Slab,
        max_batch: int,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        self._acting, self._networks = acting, networks
        self._states, self._recorder, self._device = states, recorder, device
        self._staging = Staging(slab, max_batch, device)
        self._output = {
            spec.name: zeros(spec, (max_batch,), device)
            for spec in (*REPLY_SCALARS, VERSION, *acting.record_specs)
        }
        recorder.attach(self._staging, self._output)
        self._first_outputs = cache(self._first_outputs_of)
        self._action: Tensor | None = None

    @torch.inference_mode()
    def run(self, batch: ServedBatch) -> HostRows:
        """See `Forward.run`."""
        staged = self._staging.load(batch.places)
        rows = torch.from_numpy(batch.rows).to(self._device)
        state = self._states.gather(rows, staged.tensors["first"])
        self._recorder.begin(batch.trained_rows, batch.trained, state)

        network, version = self._networks.pin()
        greedy = None if batch.greedy is None else torch.from_numpy(batch.greedy).to(self._device)
        env_ids = torch.from_numpy(batch.env_ids).to(self._device)
        inputs = ActingInput(
            staged.observation, staged.tensors["reward"], staged.tensors["first"], greedy, env_ids
        )
        output = self._acting.act(network, inputs, state)
        self._states.scatter(rows, output.state)
        outputs = self._first_outputs(len(batch.rows))
        outputs[VERSION.name].fill_(version)
        outputs["action"].copy_(output.action)
        for name, value in output.record.items():
            outputs[name].copy_(value)
        self._recorder.end()
        self._action = output.action
        return staged.host

    def store_actions(self, batch: ServedBatch) -> None:
        """See `Forward.store_actions`."""
        assert self._action is not None
        self._staging.store_actions(batch.places, self._action.cpu().numpy())

    def hand_over(self) -> None:
        """See `Forward.hand_over`."""
        self._recorder.hand_over()

    def _first_outputs_of(self, total: int) -> dict[str, Tensor]:
        return {name: value[:total] for name, value in self._output.items()}

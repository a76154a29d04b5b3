"""A learner and its actors driven in a fixed order by one thread, and all that it does written down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seedflow.actor.start import shape_of
from seedflow.actor.stepping import ActorLoop
from seedflow.algos.vtrace.learning import VTraceLearning
from seedflow.config import Config
from seedflow.envs import env_seed, make_group, probe_spec
from seedflow.learner.backend import Backend
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.networks import NetworkInput
from seedflow.rollout.storage import UnrollBatch
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import Registration, Role
from seedflow.rpc.slab import BlockLayout, Slab

UPDATES = 7


class History:
    """What a learner did.

    Attributes
    ----------
    batches
        Every batch before it was trained on, core states as ``state 0`` and so on.
    weights
        Before each of them, and at the end.
    log_probs
        What these weights say of a batch's actions, for the weights that acted there.
    actions
        The slab's actions after each inference batch.
    reports
        What the learner reported.
    """

    def __init__(self) -> None:
        self.batches: list[dict[str, Tensor]] = []
        self.weights: list[Tensor] = []
        self.log_probs: list[Tensor] = []
        self.actions: list[NDArray[np.int64]] = []
        self.reports: list[str] = []

    def note(self, learning: VTraceLearning, batch: UnrollBatch) -> None:
        """Write down what is about to be trained on."""
        state = {f"state {i}": part for i, part in enumerate(batch.state)}
        self.batches.append({name: value.clone() for name, value in (batch.fields | state).items()})
        self.weights.append(learning.parameters.parameter.detach().clone())
        self.log_probs.append(self._of_recorded_versions(learning, batch))

    @torch.no_grad()
    def _of_recorded_versions(self, learning: VTraceLearning, batch: UnrollBatch) -> Tensor:
        fields, parameter = batch.fields, learning.parameters.parameter
        inputs = NetworkInput((fields["observation"],), fields["reward"], fields["first"], fields["action"])
        result = torch.zeros_like(fields["behaviour_log_prob"])
        for version in fields["version"][:-1].unique().tolist():
            parameter.copy_(self.weights[version])
            log_probs = learning.network(inputs, batch.state)[0].logits.log_softmax(-1)
            of_action = log_probs.gather(-1, fields["action"].unsqueeze(-1)).squeeze(-1)
            result = torch.where(fields["version"] == version, of_action, result)
        parameter.copy_(self.weights[-1])
        return result


@contextmanager
def driven(
    config: Config, backend: Backend, history: History
) -> Iterator[tuple[Learner, list[ActorLoop], Slab]]:
    """A learner, its actors and their slab in this thread."""
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab, TemporaryDirectory() as run_dir:
        transport = InlineTransport(layout, slab, table)
        learner = Learner(config, spec, transport, Path(run_dir), history.reports.append, backend=backend)
        actors = []
        roles: list[Role] = ["train", "eval"] if config.eval.every else ["train"]
        for role in roles:
            groups, envs = shape_of(config, role)
            connection = transport.connect(Registration(role, 0, 0, spec.fingerprint, groups, envs))
            seeds = [
                env_seed(config.seed, "eval" if role == "eval" else "actor", i, 0) for i in connection.env_ids
            ]
            made = [make_group(config.env, envs, seeds[g * envs : (g + 1) * envs]) for g in range(groups)]
            actors.append(ActorLoop(connection, made))
        try:
            yield learner, actors, slab
        finally:
            for actor in actors:
                actor.close()
            learner.close()
            transport.close()


def history_of(config: Config, backend: Backend, eager: bool = True, updates: int = UPDATES) -> History:
    """Train for some updates: eagerly, or only when slots and batches are used up."""
    history = History()
    with driven(config, backend, history) as (learner, actors, slab):
        learning = learner.algorithm.learning
        assert isinstance(learning, VTraceLearning)
        update = learning.update

        def noting(batch: UnrollBatch, learning_rate: float) -> dict[str, float]:
            history.note(learning, batch)
            return update(batch, learning_rate)

        learning.update = noting  # type: ignore[method-assign]
        for _ in range(100 * updates):
            for actor in actors:
                while actor.step(0.0) is not None:
                    pass
            moved = learner.inference.step(0.0)
            if moved:
                history.actions.append(slab.fields["action"].copy())
            moved |= learner.prefetch.step()
            if eager or not moved:
                learner.training.step()
            if learner.progress.updates >= updates:
                break
        assert learner.progress.updates >= updates
        with backend.stream("training").scope():
            history.weights.append(learning.parameters.parameter.detach().clone())
    return history


def differences(one: History, other: History) -> list[str]:
    """Where two histories are not the same."""
    found = []
    for turn, (left, right) in enumerate(zip(one.batches, other.batches, strict=True)):
        found += [f"{name} of batch {turn}" for name in left if not torch.equal(left[name], right[name])]
    for turn, (mine, yours) in enumerate(zip(one.weights, other.weights, strict=True)):
        found += [] if torch.equal(mine, yours) else [f"weights {turn}"]
    for turn, (acted, other_acted) in enumerate(zip(one.actions, other.actions, strict=True)):
        found += [] if np.array_equal(acted, other_acted) else [f"actions {turn}"]
    return found

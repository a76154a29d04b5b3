"""How R2D2 learns: one optimizer step per batch of sequences, against a slowly following target network."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from seedflow.algos.base import Algorithm, ReplayLearning, SequenceUpdate
from seedflow.algos.optimizer import FlatOptimizer
from seedflow.algos.r2d2.acting import R2D2Acting
from seedflow.algos.r2d2.exploration import exploration_ladder
from seedflow.algos.r2d2.loss import q_values, r2d2_loss
from seedflow.algos.r2d2.priorities import ActingPriority
from seedflow.algos.randomness import torch_seed
from seedflow.config import Config, R2D2Config
from seedflow.kernels import check_finite
from seedflow.networks.devices import pick_device
from seedflow.networks.dueling import DuelingQ
from seedflow.networks.flat import FlatParameters
from seedflow.replay.layout import ReplaySpec
from seedflow.rollout.storage import UnrollBatch
from seedflow.specs import EnvSpec


class R2D2Learning(ReplayLearning):
    """R2D2's update.

    Parameters
    ----------
    network
        The network that is trained; its parameters become views of one flat buffer.
    config
        The run's config, of which `algo` is R2D2's.

    Attributes
    ----------
    target
        The target network, a copy of the trained one as it was at most `algo.target_period` updates ago.
    """

    passing_specs = R2D2Acting.record_specs

    def __init__(self, network: DuelingQ, config: Config) -> None:
        assert isinstance(config.algo, R2D2Config)
        self.network: DuelingQ = network
        self.target: DuelingQ = copy.deepcopy(network).requires_grad_(False)
        self.parameters, self._followed = FlatParameters(network), FlatParameters(self.target)
        self._optimizer = FlatOptimizer(self.parameters, config.train)
        self._config, self._burn_in = config.algo, config.replay.burn_in
        self._check = config.kernels.check
        self._finite = torch.ones((), dtype=torch.int32, device=self.parameters.parameter.device)
        self._updates = 0

    def update(self, batch: UnrollBatch, weights: Tensor, learning_rate: float) -> SequenceUpdate:
        with torch.no_grad():
            q_target = q_values(self.target, batch, self._burn_in)
        q_online = q_values(self.network, batch, self._burn_in)
        if self._check:
            check_finite(reward=batch.fields["reward"], q_online=q_online, q_target=q_target)
        self._finite.fill_(1)
        loss, diagnostics = r2d2_loss(
            q_online, q_target, batch, weights, self._burn_in, self._config, self._finite
        )
        self.parameters.zero_grad()
        loss.total.backward()  # type: ignore[no-untyped-call]
        if self._check:
            check_finite(**{f"gradient of {name}": p.grad for name, p in self.network.named_parameters()})
        diagnostics["loss/gradient_norm"] = self._optimizer.step(learning_rate)
        diagnostics["loss/finite"] = self._finite.to(torch.float32)
        self._updates += 1
        if self._updates % self._config.target_period == 0:
            self._follow()
        numbers = dict(zip(diagnostics, torch.stack(list(diagnostics.values())).tolist(), strict=True))
        return SequenceUpdate(numbers | {"loss/learning_rate": learning_rate}, loss.priorities)

    def new_priorities(self, spec: ReplaySpec) -> ActingPriority:
        return ActingPriority(spec, self._config)

    def tensors(self) -> dict[str, Tensor]:
        target = {f"target/{name}": value for name, value in self.target.state_dict().items()}
        return self._optimizer.tensors() | target | {"updates": torch.tensor(self._updates)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.restore(tensors)
        with torch.no_grad():
            for name, value in self.target.state_dict().items():
                value.copy_(tensors[f"target/{name}"])
        self._updates = int(tensors["updates"])

    @torch.no_grad()
    def _follow(self) -> None:
        self._followed.parameter.copy_(self.parameters.parameter)


def make_r2d2(config: Config, spec: EnvSpec) -> Algorithm:
    """Build R2D2; initial weights and exploration have random streams of their own."""
    assert isinstance(config.algo, R2D2Config)
    device = pick_device(config.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "weights"))
        network = DuelingQ(spec, config.network).to(device)
    generator = torch.Generator(device)
    generator.manual_seed(torch_seed(config.seed, "sampling"))
    ladder = exploration_ladder(config.max_envs, config.algo.exploration_base, config.algo.exploration_power)
    acting = R2D2Acting(generator, ladder, config.algo.evaluation_epsilon)
    return Algorithm(acting, R2D2Learning(network, config), network.state_specs)

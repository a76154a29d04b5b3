"""How V-trace learns: one optimizer step per batch of unrolls."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from seedflow.algos.base import Algorithm, UnrollLearning
from seedflow.algos.optimizer import FlatOptimizer
from seedflow.algos.randomness import torch_seed
from seedflow.algos.vtrace.acting import VTraceActing
from seedflow.algos.vtrace.loss import VTraceTargets, vtrace_loss
from seedflow.config import Config, VTraceConfig
from seedflow.kernels import check_finite
from seedflow.networks.actor_critic import ActorCritic
from seedflow.networks.devices import pick_device
from seedflow.networks.flat import FlatParameters
from seedflow.networks.trunk import NetworkInput
from seedflow.rollout.storage import UnrollBatch
from seedflow.specs import EnvSpec


class VTraceLearning(UnrollLearning):
    """V-trace's update.

    Parameters
    ----------
    network
        The network that is trained; its parameters become views of one flat buffer.
    config
        The run's config, of which `algo` is V-trace's.
    """

    def __init__(self, network: ActorCritic, config: Config) -> None:
        assert isinstance(config.algo, VTraceConfig)
        self.network: ActorCritic = network
        self.parameters = FlatParameters(network)
        self._optimizer = FlatOptimizer(self.parameters, config.train)
        self._config = config.algo
        self._check = config.kernels.check
        self._finite = torch.ones((), dtype=torch.int32, device=self.parameters.parameter.device)
        self._leaves = tuple(leaf.name for leaf in network.leaves)
        self._log_entropy_cost = math.log(max(config.algo.entropy_cost, 1e-12))

    @property
    def entropy_cost(self) -> float:
        """Present weight of the entropy bonus."""
        if self._config.target_entropy is None:
            return self._config.entropy_cost
        return math.exp(self._log_entropy_cost)

    def update(self, batch: UnrollBatch, learning_rate: float) -> dict[str, float]:
        fields = batch.fields
        inputs = NetworkInput(
            tuple(fields[name] for name in self._leaves), fields["reward"], fields["first"], fields["action"]
        )
        output, _ = self.network(inputs, batch.state)
        targets = VTraceTargets.from_unrolls(fields, self._config)
        if self._check:
            check_finite(
                reward=fields["reward"],
                behaviour_log_prob=fields["behaviour_log_prob"],
                logits=output.logits,
                values=output.value,
            )
        cost = self.entropy_cost
        self._finite.fill_(1)
        loss, diagnostics = vtrace_loss(
            output.logits, output.value, targets, self._config, cost, self._finite
        )
        self.parameters.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self._check:
            check_finite(**{f"gradient of {name}": p.grad for name, p in self.network.named_parameters()})
        diagnostics["loss/gradient_norm"] = self._optimizer.step(learning_rate)
        diagnostics["loss/finite"] = self._finite.to(torch.float32)
        numbers = dict(zip(diagnostics, torch.stack(list(diagnostics.values())).tolist(), strict=True))
        if self._config.target_entropy is not None:
            # Lagrange multiplier in log space: above the target entropy the cost falls.
            missing = self._config.target_entropy - numbers["loss/entropy"]
            self._log_entropy_cost += self._config.entropy_cost_rate * missing
        return numbers | {"loss/entropy_cost": cost, "loss/learning_rate": learning_rate}

    def tensors(self) -> dict[str, Tensor]:
        cost = torch.tensor(self._log_entropy_cost, dtype=torch.float64)
        return self._optimizer.tensors() | {"log_entropy_cost": cost}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimizer.restore(tensors)
        self._log_entropy_cost = float(tensors["log_entropy_cost"])


def make_vtrace(config: Config, spec: EnvSpec) -> Algorithm:
    """Build V-trace; initial weights and action sampling have random streams of their own."""
    device = pick_device(config.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "weights"))
        network = ActorCritic(spec, config.network).to(device)
    generator = torch.Generator(device)
    generator.manual_seed(torch_seed(config.seed, "sampling"))
    learning = VTraceLearning(network, config)
    return Algorithm(VTraceActing(generator), learning, network.state_specs)

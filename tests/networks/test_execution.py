"""How a network runs: in bfloat16, or compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.config import NetworkConfig
from seedflow.networks import NetworkInput
from seedflow.networks.actor_critic import ActorCritic
from seedflow.networks.cores import State
from seedflow.rollout.state_table import zeros
from seedflow.specs import ArraySpec, EnvSpec

SPEC = EnvSpec((ArraySpec("observation", (12,), np.dtype("float32")),), num_actions=5)
CORED: dict[str, Any] = {"core": "lstm", "core_size": 16, "inputs": ("previous_action", "previous_reward")}


def make(**settings: Any) -> ActorCritic:
    torch.manual_seed(3)
    return ActorCritic(SPEC, NetworkConfig(**(CORED | settings)))


def inputs(steps: int, batch: int) -> NetworkInput:
    generator = torch.Generator().manual_seed(4)
    return NetworkInput(
        (torch.randn(steps, batch, 12, generator=generator),),
        torch.randn(steps, batch, generator=generator),
        torch.rand(steps, batch, generator=generator) < 0.2,
        torch.randint(5, (steps, batch), generator=generator),
    )


def initial(network: ActorCritic, batch: int) -> State:
    return tuple(zeros(spec, (batch,), torch.device("cpu")) for spec in network.state_specs)


def test_bfloat16_computes_about_the_same_and_gives_back_float32() -> None:
    exact, rough = make(), make(autocast="bfloat16")
    given = inputs(7, 4)
    expected, state = exact(given, initial(exact, 4))
    output, rough_state = rough(given, initial(rough, 4))
    for wanted, found in ((expected.logits, output.logits), (expected.value, output.value)):
        assert found.dtype is torch.float32
        assert not torch.equal(found, wanted)
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.02)
    for spec, found, wanted in zip(rough.state_specs, rough_state, state, strict=True):
        assert found.dtype is wanted.dtype is getattr(torch, spec.dtype.name)


def test_gradients_of_bfloat16_are_float32() -> None:
    exact, rough = make(), make(autocast="bfloat16")
    for network in (exact, rough):
        output, _ = network(inputs(7, 4), initial(network, 4))
        (output.value.square().mean() + output.logits.square().mean()).backward()
    for wanted, found in zip(exact.parameters(), rough.parameters(), strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert found.grad.dtype is torch.float32
        distance = (found.grad - wanted.grad).norm() / (wanted.grad.norm() + 1e-4)
        assert distance < 0.1


def test_a_network_and_each_copy_of_it_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Callable[..., Any]] = []

    def compile_(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Callable[..., Any]:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_)
    plain, network = make(), make(compile=True)
    assert [function.__self__ for function in compiled] == [network]  # type: ignore[attr-defined]
    twin = copy.deepcopy(network)
    assert compiled[-1].__self__ is twin  # type: ignore[attr-defined]
    assert plain.state_dict().keys() == network.state_dict().keys()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    output, _ = twin(inputs(2, 3), initial(twin, 3))
    assert not output.logits.any()
    assert network(inputs(2, 3), initial(network, 3))[0].logits.any()


@pytest.mark.filterwarnings("ignore")  # those of the tracer
def test_a_compiled_network_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **settings: compile_(f, backend="aot_eager"))
    plain, network = make(core="none"), make(core="none", compile=True)
    for batch in (3, 5):
        given = inputs(2, batch)
        expected, _ = plain(given, initial(plain, batch))
        output, _ = network(given, initial(network, batch))
        torch.testing.assert_close(output.logits, expected.logits)
    torch.compiler.reset()

"""Which actions R2D2 takes, and what it records of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seedflow.algos import ActingInput, ActingOutput
from seedflow.algos.r2d2.acting import R2D2Acting
from seedflow.config import NetworkConfig
from seedflow.networks import DuelingQ, NetworkInput
from seedflow.specs import ArraySpec, EnvSpec

SPEC = EnvSpec((ArraySpec("observation", (3,), np.dtype("float32")),), num_actions=4)
N = 4000


@pytest.fixture(scope="module")
def network() -> DuelingQ:
    torch.manual_seed(0)
    return DuelingQ(SPEC, NetworkConfig(hidden=(8,), head_size=8))


def act(network: DuelingQ, acting: R2D2Acting, **inputs: torch.Tensor) -> tuple[torch.Tensor, ActingOutput]:
    """Q-values of N random observations, and what was done there."""
    observation = (torch.randn(N, 3),)
    given = ActingInput(observation, torch.zeros(N), torch.zeros(N, dtype=torch.bool), **inputs)
    with torch.inference_mode():
        alone = NetworkInput((observation[0].unsqueeze(0),), torch.zeros(1, N), given.first.unsqueeze(0))
        return network(alone, ())[0][0], acting.act(network, given, ())


def acting(*ladder: float, epsilon: float = 0.0) -> R2D2Acting:
    return R2D2Acting(torch.Generator().manual_seed(1), ladder, epsilon)


def test_without_exploration_the_best_action_is_taken(network: DuelingQ) -> None:
    q, output = act(network, acting(1.0, epsilon=0.0))
    assert torch.equal(output.action, q.argmax(dim=-1))
    assert torch.equal(output.record["q_taken"], output.record["q_best"])


def test_each_environment_explores_by_its_own_rung(network: DuelingQ) -> None:
    ids = torch.arange(N) % 3
    q, output = act(network, acting(0.0, 0.5, 1.0), env_ids=ids)
    differs = (output.action != q.argmax(dim=-1)).double()
    shares = [differs[ids == i].mean().item() for i in range(3)]
    # A random action is the best one by chance in one of four cases.
    assert shares == pytest.approx([0.0, 0.5 * 0.75, 0.75], abs=0.05)
    assert set(output.action.tolist()) == {0, 1, 2, 3}


def test_environments_that_are_not_trained_on_have_an_epsilon_of_their_own(network: DuelingQ) -> None:
    q, output = act(network, acting(1.0, epsilon=0.2), env_ids=torch.full((N,), -1))
    share = (output.action != q.argmax(dim=-1)).double().mean().item()
    assert share == pytest.approx(0.2 * 0.75, abs=0.03)


def test_greedy_rows_do_not_explore_at_all(network: DuelingQ) -> None:
    greedy = torch.arange(N) % 2 == 0
    q, output = act(network, acting(1.0, epsilon=1.0), greedy=greedy)
    assert torch.equal(output.action[greedy], q.argmax(dim=-1)[greedy])
    assert not torch.equal(output.action[~greedy], q.argmax(dim=-1)[~greedy])


def test_the_recorded_values_are_those_of_the_action_and_of_the_best_one(network: DuelingQ) -> None:
    q, output = act(network, acting(epsilon=1.0))
    torch.testing.assert_close(
        output.record["q_taken"], q.gather(-1, output.action.unsqueeze(-1)).squeeze(-1)
    )
    torch.testing.assert_close(output.record["q_best"], q.amax(dim=-1))
    assert (output.record["q_taken"] <= output.record["q_best"]).all()

"""The policy of a run, used without the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import seedflow
from seedflow.errors import SpecError
from seedflow.evaluate import Policy
from tests.small_runs import small_config


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "run"
    config = small_config(
        network={"core": "lstm", "core_size": 4, "inputs": ["previous_reward"]},
        train={"total_agent_steps": 60},
    )
    seedflow.train(config, run_dir=path)
    return path


@pytest.fixture
def policy(run_dir: Path) -> Policy:
    return seedflow.load_policy(run_dir)


OBSERVATION = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(3, 4)


def test_a_policy_says_what_it_is(policy: Policy) -> None:
    assert repr(policy) == (
        f"<Policy of generation 1 after {policy.agent_steps} steps: observation [4] float32 to one of 2 "
        "actions>"
    )
    assert policy.agent_steps >= 60


@pytest.mark.parametrize("value", [True, False])
def test_one_value_stands_for_all_environments(policy: Policy, value: bool) -> None:
    state = tuple(s + 0.5 for s in policy.initial_state(3))
    single = policy.act(OBSERVATION, state, value, reward=0.5, deterministic=True)
    each = policy.act(OBSERVATION, state, [value] * 3, reward=np.full(3, 0.5), deterministic=True)
    assert single[0].tolist() == each[0].tolist()
    assert all(s.tolist() == e.tolist() for s, e in zip(single[1], each[1], strict=True))


def test_what_does_not_fit_is_named(policy: Policy) -> None:
    state = policy.initial_state(3)
    with pytest.raises(SpecError, match=r"observation has shape \(4,\); .*give observation\[None\]"):
        policy.act(OBSERVATION[0], policy.initial_state(1), [True])
    with pytest.raises(SpecError, match=r"observation has shape \(3, 4\); expected \(2, 4\)"):
        policy.act(OBSERVATION, state, [True, False])
    with pytest.raises(SpecError, match=r"reward has shape \(2,\); expected \(3,\)"):
        policy.act(OBSERVATION, state, True, reward=[1.0, 2.0])
    with pytest.raises(SpecError, match=r"state is that of 2 environments; .* initial_state\(3\)"):
        policy.act(OBSERVATION, policy.initial_state(2), True)


def test_an_evaluation_says_which_checkpoint_has_played(run_dir: Path, policy: Policy) -> None:
    result = seedflow.evaluate(run_dir, episodes=2)
    assert (result.generation, result.agent_steps) == (policy.generation, policy.agent_steps)
    assert len(result.returns) == result.episodes == 2

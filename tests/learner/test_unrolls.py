"""What arrives in unrolls, index by index, over every path."""

from pathlib import Path

import numpy as np
import pytest
import torch

from seedflow.algos import make_algorithm
from seedflow.envs import probe_spec
from seedflow.envs.synthetic import counting_observation, counting_reward
from seedflow.networks import NetworkInput
from tests.learner.rig import counting_config, gathered_unrolls, learner_with_actor


def test_slab_and_grpc_give_identical_unrolls(tmp_path: Path) -> None:
    config = counting_config()
    over = {path: gathered_unrolls(config, path, tmp_path / path) for path in ("slab", "grpc")}
    for slab, grpc in zip(over["slab"], over["grpc"], strict=True):
        assert slab.keys() == grpc.keys()
        for name in slab:
            np.testing.assert_array_equal(slab[name], grpc[name], err_msg=name)


def test_an_unroll_holds_consecutive_indices_of_one_environment(tmp_path: Path) -> None:
    config = counting_config()
    (leaf,) = probe_spec(config.env).observation
    expected = np.array([[counting_observation(e, c, leaf) for c in range(200)] for e in range(4)])
    seen = set()
    for batch in gathered_unrolls(config, "slab", tmp_path):
        for b in range(2):
            unroll = {name: value[:, b] for name, value in batch.items() if not name.startswith("state")}
            env = int(unroll["observation"][0, 0] // 1000)
            start = int(unroll["observation"][0, 0] - 1000 * env)
            seen.add((env, start))
            np.testing.assert_array_equal(unroll["observation"], expected[env, start : start + 7])
            for t in range(7):
                first = bool(unroll["first"][t])
                reward = 0.0 if first else counting_reward(env, start + t)
                assert unroll["reward"][t] == reward
                ended = unroll["terminated"][t] or unroll["truncated"][t]
                if t < 6:
                    assert ended == unroll["first"][t + 1], "an end and a beginning come in pairs"
            assert ((unroll["action"] >= 0) & (unroll["action"] < 5)).all()
            assert (unroll["behaviour_log_prob"] < 0).all()
    # T = 6 with overlap 1: each environment's unrolls begin at 0, 6, 12, ...
    assert seen == {(env, start) for env in range(4) for start in (0, 6)}


def test_the_stored_state_is_that_of_the_first_index(tmp_path: Path) -> None:
    """Unrolled from its stored state, the network repeats what it said while acting."""
    config = counting_config()
    network = make_algorithm(config, probe_spec(config.env)).learning.network
    batches = gathered_unrolls(config, "slab", tmp_path)
    for batch in batches:
        tensors = {name: torch.from_numpy(value) for name, value in batch.items()}
        state = tuple(tensors[name] for name in tensors if name.startswith("state"))
        inputs = NetworkInput(
            (tensors["observation"],), tensors["reward"], tensors["first"], tensors["action"]
        )
        with torch.no_grad():
            output, _ = network(inputs, state)
        again = torch.log_softmax(output.logits, -1).gather(-1, tensors["action"].unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(again, tensors["behaviour_log_prob"], rtol=0, atol=1e-5)
    assert any(batch["state 2"].any() for batch in batches)


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_frames_are_counted_apart_from_agent_steps(tmp_path: Path, core: str) -> None:
    config = counting_config(network={"core": core, "core_size": 8})
    with learner_with_actor(config, "slab", tmp_path) as learner:
        while learner.progress.agent_steps < 100:
            learner.inference.step(5.0)
            learner.prefetch.step()
            learner.training.step()
        assert learner.progress.env_frames == 4 * learner.progress.agent_steps

"""What arrives in unrolls, index by index, over every path."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from seedflow.algos import make_algorithm
from seedflow.algos.vtrace.learning import VTraceLearning
from seedflow.envs import probe_spec
from seedflow.envs.synthetic import counting_observation, counting_reward
from seedflow.learner.learner import Learner
from seedflow.networks import NetworkInput
from tests.learner.rig import COUNTING, SplitLearner, counting_config, gathered_unrolls, learner_with_actor


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


def test_sixteen_environments_of_a_group_are_truncated_each_at_its_own_time(tmp_path: Path) -> None:
    """Each ends at its true last observation, and no other environment's end shows in its unroll."""
    kwargs = {**COUNTING["env"]["kwargs"], "ending": "truncated", "episode_length": [2, 9]}
    config = counting_config(
        env={**COUNTING["env"], "kwargs": kwargs},
        actor={"count": 1, "groups": 1, "envs_per_group": 16},
        rollout={"unroll": 12, "prefetch": 3},
        train={"batch": 8},
    )
    (leaf,) = probe_spec(config.env).observation
    ends: dict[int, list[int]] = {}
    for batch in gathered_unrolls(config, "slab", tmp_path):
        assert not batch["terminated"].any()
        truncated, first = batch["truncated"], batch["first"]
        np.testing.assert_array_equal(truncated[:-1], first[1:])
        for b in range(8):
            start = batch["observation"][0, b, 0]
            env, count = int(start // 1000), int(start % 1000)
            for t in range(13):
                expected = counting_observation(env, count + t, leaf)
                np.testing.assert_array_equal(batch["observation"][t, b], expected)
                reward = 0.0 if first[t, b] else counting_reward(env, count + t)
                assert batch["reward"][t, b] == reward
            ends.setdefault(env, []).extend(count + t for t in range(1, 13) if truncated[t, b])
    assert ends.keys() == set(range(16))
    assert len({tuple(times) for times in ends.values()}) > 8  # their times differ


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


@pytest.mark.parametrize("make", [Learner, SplitLearner])
def test_recorded_probabilities_are_those_of_the_recorded_weights(
    make: type[Learner | SplitLearner], tmp_path: Path
) -> None:
    """Inference runs beside training; whatever version an index names acted there, to the last bits."""
    # Without a core, so that an index depends on no weights but those that acted there.
    config = counting_config(train={"batch": 2, "learning_rate": 0.05}, network={"core": "none"})
    stop = threading.Event()
    with learner_with_actor(config, "slab", tmp_path, make) as learner:

        def serve() -> None:
            while not stop.is_set():
                learner.inference.step(0.1)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            _check_versions(learner, updates=60)
        finally:
            stop.set()
            serving.join(30.0)


def _check_versions(learner: Learner | SplitLearner, updates: int) -> None:
    learning, batches = learner.algorithm.learning, learner.trainer.pipeline.batches
    assert isinstance(learning, VTraceLearning)
    weights = learning.parameters.parameter
    history, versions, turn = [weights.detach().clone()], set(), 0
    while learner.progress.updates < updates:
        if not learner.prefetch.step():
            learner.prefetch.wait(0.1)
            continue
        fields, state = batches[turn].fields, batches[turn].state
        turn = (turn + 1) % len(batches)
        with torch.no_grad():
            for version in fields["version"][:-1].unique().tolist():
                weights.copy_(history[version])
                inputs = NetworkInput(
                    (fields["observation"],), fields["reward"], fields["first"], fields["action"]
                )
                log_probs = learning.network(inputs, state)[0].logits.log_softmax(-1)
                of_action = log_probs.gather(-1, fields["action"].unsqueeze(-1)).squeeze(-1)
                there = fields["version"] == version
                torch.testing.assert_close(
                    of_action[there], fields["behaviour_log_prob"][there], rtol=1e-5, atol=1e-5
                )
                versions.add(version)
            weights.copy_(history[-1])
        assert learner.training.step()
        history.append(weights.detach().clone())
    assert len(versions) > updates / 4, versions

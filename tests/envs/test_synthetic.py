"""The environment of chosen size, cost and content."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.config import EnvConfig
from seedflow.envs import env_seed, make_group
from seedflow.envs.synthetic import counting_observation, counting_reward
from seedflow.errors import ConfigError
from seedflow.specs import OBSERVATION_DTYPES, ArraySpec
from tests.envs.conformance import GroupConformance, ThreeStepConformance, episodes, record, seeds


def make(num_envs=2, **kwargs):
    return make_group(EnvConfig(id="seedflow/Synthetic-v0", kwargs=kwargs), num_envs, seeds(num_envs))


class TestNoise(GroupConformance):
    def make(self, seeds):
        kwargs = {"observation_shape": [4, 4], "episode_length": [1, 6]}
        return make_group(EnvConfig(id="seedflow/Synthetic-v0", kwargs=kwargs), len(seeds), seeds)


class TestThreeStep(ThreeStepConformance):
    ending = "truncated"

    def make(self, seeds):
        kwargs = {"content": "constant", "episode_length": 3, "ending": "truncated"}
        return make_group(EnvConfig(id="seedflow/Synthetic-v0", kwargs=kwargs), len(seeds), seeds)

    # Constant content has nothing that seeds could change.
    test_equal_seeds_repeat_and_a_new_incarnation_does_not = None
    test_environments_of_a_group_differ = None
    test_a_second_reset_does_not_replay_the_first_episodes = None


@pytest.mark.parametrize("dtype", OBSERVATION_DTYPES)
def test_every_dtype_and_shape_is_served(dtype):
    for content in ("noise", "constant", "counting"):
        with make(observation_shape=[3, 2], observation_dtype=dtype, content=content) as group:
            history = record(group, 2)
        assert history["observation"].dtype == dtype
        assert history["observation"].shape == (3, 2, 3, 2)


def test_counting_content_is_a_function_of_environment_and_row():
    own = [env_seed(1, "actor", env_id, 0) for env_id in (5, 2)]
    kwargs = {
        "content": "counting",
        "observation_shape": [2],
        "observation_dtype": "int32",
        "episode_length": 3,
    }
    with make_group(EnvConfig(id="seedflow/Synthetic-v0", kwargs=kwargs), 2, own) as group:
        history = record(group, 4)
    np.testing.assert_array_equal(
        history["observation"][:, 0], [[5000, 5001], [5001, 5002], [5002, 5003], [5003, 5004], [5004, 5005]]
    )
    np.testing.assert_array_equal(history["observation"][:, 1, 0], [2000, 2001, 2002, 2003, 2004])
    step = 1 / 128
    np.testing.assert_array_equal(history["reward"][:, 0], [0, 5 + step, 5 + 2 * step, 5 + 3 * step, 0])
    assert history["terminated"][3].all()
    assert history["first"][4].all()


@given(env_id=st.integers(0, 10_000), count=st.integers(0, 10**9), dtype=st.sampled_from(OBSERVATION_DTYPES))
@settings(max_examples=50)
def test_counting_values_are_exact_in_every_dtype(env_id, count, dtype):
    values = counting_observation(env_id, count, ArraySpec("observation", (3,), np.dtype(dtype)))
    modulus = {"bool": 2, "uint8": 256, "int8": 128, "float16": 2048, "int16": 2**15}.get(dtype, 2**24)
    assert [int(v) for v in values] == [(1000 * env_id + count + k) % modulus for k in range(3)]
    assert float(counting_reward(env_id, count)) == env_id % 16 + (count % 97) / 128


def test_episode_lengths_are_drawn_from_the_whole_range():
    with make(content="constant", episode_length=[2, 4], frames_per_step=4) as group:
        done = episodes(record(group, 200))
    assert {(length, frames) for _, length, frames in done} == {(2, 8), (3, 12), (4, 16)}


def test_a_step_burns_the_processor_time_it_is_told_to():
    with make(num_envs=4, step_cost_us=500) as group:
        before = time.thread_time_ns()
        record(group, 5)
        assert time.thread_time_ns() - before >= 5 * 4 * 500_000


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_action": 3}, "env.kwargs.num_action: .*num_actions"),
        ({"observation_dtype": "complex64"}, "observation_dtype = 'complex64': expected one of uint8"),
        ({"episode_length": [5, 2]}, r"episode_length = \[5, 2\]: expected \[low, high\]"),
        ({"step_cost_us": -1}, "env.kwargs.step_cost_us"),
        ({"content": "count"}, "env.kwargs.content: .*'counting'"),
    ],
)
def test_a_wrong_setting_is_named(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make(**kwargs)

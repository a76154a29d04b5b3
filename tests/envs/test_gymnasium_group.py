"""Gymnasium environments of every autoreset mode as groups."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from seedflow.config import EnvConfig
from seedflow.envs import allocate_rows, make_group
from seedflow.envs.gymnasium_group import GymnasiumGroup, make_sync
from seedflow.errors import EnvironmentFault, SpecError
from tests.envs import three_step
from tests.envs.conformance import (
    GroupConformance,
    ThreeStepConformance,
    assert_equal_histories,
    episodes,
    record,
    seeds,
)
from tests.envs.three_step import ThreeStep, ThreeStepVector

three_step.register()


class TestSync(ThreeStepConformance):
    def make(self, seeds):
        return make_group(EnvConfig(id="seedflow-tests/ThreeStep-v0"), len(seeds), seeds)


class TestSyncTruncated(ThreeStepConformance):
    ending = "truncated"

    def make(self, seeds):
        config = EnvConfig(id="seedflow-tests/ThreeStep-v0", kwargs={"ending": "truncated"})
        return make_group(config, len(seeds), seeds)


class TestEntryPoint(ThreeStepConformance):
    def make(self, seeds):
        return make_group(EnvConfig(id="seedflow-tests/ThreeStepVector-v0"), len(seeds), seeds)


class TestEntryPointDisabled(ThreeStepConformance):
    ending = "truncated"

    def make(self, seeds):
        config = EnvConfig(
            id="seedflow-tests/ThreeStepVector-v0", kwargs={"mode": "Disabled", "ending": "truncated"}
        )
        return make_group(config, len(seeds), seeds)


class TestSyncVectorDisabled(ThreeStepConformance):
    def make(self, seeds):
        config = EnvConfig(id="seedflow-tests/ThreeStepSync-v0", kwargs={"mode": "Disabled"})
        return make_group(config, len(seeds), seeds)


class TestEnvFn(ThreeStepConformance):
    def make(self, seeds):
        return make_group(EnvConfig(), len(seeds), seeds, env_fn=ThreeStep)


class TestCartPoleEntryPoint(GroupConformance):
    steps = 100

    def make(self, seeds):
        return make_group(EnvConfig(id="CartPole-v1", vectorization="entry_point"), len(seeds), seeds)


class TestCartPoleSync(GroupConformance):
    steps = 100

    def make(self, seeds):
        return make_group(EnvConfig(id="CartPole-v1", vectorization="sync"), len(seeds), seeds)


class Staggered(gym.Env):
    """Episodes of random lengths and starts, so that the environments of a group end apart."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 5))
        return self.np_random.normal(size=1), {}

    def step(self, action):
        assert self.left > 0
        self.left -= 1
        return self.np_random.normal(size=1) + 100.0 * action, self.left, self.left == 0, False, {}


def staggered_vector(mode):
    vector = gym.vector.SyncVectorEnv([Staggered] * 4, autoreset_mode=AutoresetMode(mode))
    return GymnasiumGroup(vector, seeds(4), "Staggered")


def test_next_step_and_disabled_give_the_same_rows():
    assert_equal_histories(record(staggered_vector("NextStep"), 60), record(staggered_vector("Disabled"), 60))


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_a_lock_step_back_end_gives_the_same_rows_under_next_step_and_disabled(ending):
    next_step = GymnasiumGroup(ThreeStepVector(3, "NextStep", ending), seeds(3), "NextStep")
    disabled = GymnasiumGroup(ThreeStepVector(3, "Disabled", ending), seeds(3), "Disabled")
    assert_equal_histories(record(next_step, 30), record(disabled, 30))


class Countdown(ThreeStepVector):
    """Environment i has episodes of i + 1 transitions: ends come apart under DISABLED."""

    def step(self, actions):
        observation, reward, terminated, truncated, info = super().step(actions)
        terminated = observation[:, 1] == 1 + np.arange(self.num_envs)
        self.ended = terminated.copy()
        return observation, reward, terminated, truncated, info


def test_a_disabled_back_end_resets_some_environments_while_others_step():
    group = GymnasiumGroup(Countdown(3, "Disabled"), seeds(3), "Countdown")
    history = record(group, 23)
    expected_first = np.stack([np.arange(24) % (i + 2) == 0 for i in range(3)], axis=1)
    np.testing.assert_array_equal(history["first"], expected_first)
    # Transitions since the episode's start, so that no reset was overwritten and no step left out.
    np.testing.assert_array_equal(
        history["observation"][:, :, 1], np.arange(24)[:, None] % np.array([2, 3, 4])
    )
    assert {(total, length) for total, length, _ in episodes(history)} == {(1.0, 1), (2.0, 2), (3.0, 3)}


def test_an_asynchronous_vector_env_under_disabled_is_never_stepped_past_an_end():
    vector = AsyncVectorEnv([ThreeStep] * 2, autoreset_mode=AutoresetMode.DISABLED, context="spawn")
    with GymnasiumGroup(vector, seeds(2), "async") as group:
        assert set(episodes(record(group, 16))) == {(3.0, 3, 3)}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, "SameStep"])
def test_same_step_is_refused_by_name_with_a_remedy(mode):
    vector = ThreeStepVector(2)
    vector.metadata = {"autoreset_mode": mode}
    with pytest.raises(
        EnvironmentFault, match=r"Foo-v0.*ThreeStepVector.*SAME_STEP.*env\.vectorization to 'sync'"
    ):
        GymnasiumGroup(vector, seeds(2), "env.id = 'Foo-v0'")


def test_a_back_end_that_does_not_say_how_it_resets_is_refused():
    vector = ThreeStepVector(2)
    vector.metadata = {}
    with pytest.raises(EnvironmentFault, match=r"autoreset_mode'\] = None; expected AutoresetMode.NEXT_STEP"):
        GymnasiumGroup(vector, seeds(2), "x")


def test_the_cartpole_entry_point_truncates_after_exactly_the_time_limit():
    config = EnvConfig(id="CartPole-v1", kwargs={"max_episode_steps": 5})
    with make_group(config, 4, seeds(4)) as group:
        history = record(group, 30)
    assert set(episodes(history)) == {(5.0, 5, 5)}
    assert history["truncated"].sum() == 20
    assert not history["terminated"].any()


def test_the_entry_point_is_taken_by_default_and_sync_for_wrapped_environments():
    def vector_of(config):
        with make_group(config, 2, seeds(2)) as group:
            return type(group._inner._env).__name__

    assert vector_of(EnvConfig(id="CartPole-v1")) == "CartPoleVectorEnv"
    assert vector_of(EnvConfig(id="CartPole-v1", vectorization="sync")) == "SyncVectorEnv"
    assert vector_of(EnvConfig(id="Acrobot-v1")) == "SyncVectorEnv"
    wrapped = EnvConfig(id="CartPole-v1", wrappers=("gymnasium.wrappers:TimeAwareObservation",))
    assert vector_of(wrapped) == "SyncVectorEnv"


class Nested(gym.Env):
    """A nested observation whose mapping holds its keys in another order than the space."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (2, 2), np.uint8),
            "aux": gym.spaces.Tuple((gym.spaces.Discrete(5), gym.spaces.Box(-1, 1, (), np.float64))),
            "flags": gym.spaces.MultiBinary(3),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observation(0), {}

    def step(self, action):
        return self._observation(1), 0, False, False, {}

    def _observation(self, k):
        return {
            "image": np.full((2, 2), 7 + k, np.uint8),
            "flags": np.array([0, 1, k], np.int8),
            "aux": (3 + k, np.float64(0.5)),
        }


def test_a_nested_observation_becomes_one_row_field_per_leaf():
    with make_group(EnvConfig(), 2, seeds(2), env_fn=Nested) as group:
        history = record(group, 1)
    np.testing.assert_array_equal(history["observation/image"][:, 1, 0, 0], [7, 8])
    np.testing.assert_array_equal(history["observation/aux/0"][:, 0], [3, 4])
    np.testing.assert_array_equal(history["observation/aux/1"][:, 0], [0.5, 0.5])
    np.testing.assert_array_equal(history["observation/flags"][:, 0], [[0, 1, 0], [0, 1, 1]])


class OutOfOrder(ThreeStepVector):
    """A vector entry point whose mapping has its keys in another order than its space, with equal shapes."""

    def __init__(self):
        super().__init__(2)
        self.single_observation_space = gym.spaces.Dict(a=three_step.SPACE, b=three_step.SPACE)

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return {"b": observation, "a": -observation}, info


def test_leaves_follow_the_space_when_a_back_end_orders_its_keys_otherwise():
    group = GymnasiumGroup(OutOfOrder(), seeds(2), "OutOfOrder")
    rows = allocate_rows(group.spec, 2)
    group.reset(rows)
    assert (rows["observation/b"][:, 0] > 0).all()
    np.testing.assert_array_equal(rows["observation/a"], -rows["observation/b"])


def test_actions_count_from_zero_whatever_the_space_starts_at():
    with staggered_vector("NextStep") as group:
        assert (group.spec.num_actions, group.spec.action_start) == (3, -1)
        rows = allocate_rows(group.spec, 4)
        group.reset(rows)
        group.step(np.array([0, 1, 2, 2]), rows)
    np.testing.assert_array_equal(np.round(rows["observation"][:, 0] / 100), [-1, 0, 1, 1])


@pytest.mark.parametrize("reward", [True, 2, np.int8(3), np.float16(0.5), float("nan"), float("-inf")])
def test_rewards_of_any_number_are_passed_on_as_float32(reward):
    with make_sync(lambda: ThreeStep(reward=reward), 1, seeds(1), "ThreeStep") as group:
        history = record(group, 1)
    np.testing.assert_array_equal(history["reward"][1], np.float32(reward))


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool"]
)
def test_observations_keep_their_dtype_and_value(dtype):
    class Typed(ThreeStep):
        observation_space = gym.spaces.Box(0, 1, (2,), np.dtype(dtype))

        def _observation(self):
            return np.array([0, 1], dtype)

    with make_group(EnvConfig(), 1, seeds(1), env_fn=Typed) as group:
        history = record(group, 1)
    assert history["observation"].dtype == dtype
    np.testing.assert_array_equal(history["observation"][1, 0], np.array([0, 1], dtype))


class WrongVector(ThreeStepVector):
    def __init__(self, observation):
        super().__init__(2)
        self.wrong = observation

    def reset(self, **kwargs):
        return self.wrong, {}


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (np.zeros((2, 3), np.float32), r"Foo: observation has shape \(2, 3\): expected \(2, 2\)"),
        (np.zeros((1, 2), np.float32), r"Foo: observation has shape \(1, 2\): expected \(2, 2\)"),
        (np.zeros((2, 2), np.complex64), r"Foo: observation has dtype complex64: expected float32"),
        (np.full((2, 2), None), r"Foo: observation has dtype object: expected float32"),
    ],
)
def test_an_observation_unlike_its_space_is_an_error_that_names_the_leaf(observation, message):
    group = GymnasiumGroup(WrongVector(observation), seeds(2), "Foo")
    with pytest.raises(SpecError, match=message):
        group.reset(allocate_rows(group.spec, 2))


def test_what_an_environment_raises_comes_through_unchanged():
    class Broken(ThreeStep):
        def step(self, action):
            raise RuntimeError("servo jammed")

    with make_group(EnvConfig(), 2, seeds(2), env_fn=Broken) as group:
        rows = allocate_rows(group.spec, 2)
        group.reset(rows)
        with pytest.raises(RuntimeError, match="servo jammed"):
            group.step(np.zeros(2, np.int64), rows)

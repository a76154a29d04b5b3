"""What `make_group` makes of a config, and what it says when it cannot."""

import gymnasium as gym
import numpy as np
import pytest

from seedflow.config import EnvConfig
from seedflow.envs import make_group
from seedflow.errors import ConfigError, EnvironmentFault, SpecError
from tests.envs import three_step
from tests.envs.conformance import record, seeds

three_step.register()


def make(num_envs=1, **config):
    return make_group(EnvConfig(**config), num_envs, seeds(num_envs))


def test_an_unknown_id_is_named_together_with_what_gymnasium_suggests():
    message = r"'CartPoel-v1' cannot be made.*Did you mean: `CartPole`.*seedflow.train\(..., env_fn=...\)"
    with pytest.raises(ConfigError, match=message):
        make(id="CartPoel-v1")


def test_an_id_may_name_the_module_that_registers_it():
    with make(id="tests.envs.three_step:seedflow-tests/ThreeStep-v0") as group:
        assert group.spec.num_actions == 2


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"'no_such_module:Env-v0' cannot be made.*no_such_module"):
        make(id="no_such_module:Env-v0")


def test_keyword_arguments_reach_the_environment():
    with make(id="FrozenLake-v1", kwargs={"map_name": "8x8"}) as group:
        history = record(group, 3)
    assert history["observation"].shape == (4, 1)
    assert group.spec.num_actions == 4


def test_arguments_that_an_entry_point_does_not_take_are_named():
    with pytest.raises(ConfigError, match=r"entry point failed: TypeError.*\['gravity'\].*'sync'"):
        make(id="CartPole-v1", kwargs={"gravity": 3})


def test_an_argument_that_an_environment_refuses_is_a_wrong_setting():
    with pytest.raises(ConfigError, match=r"env.id = 'FrozenLake-v1' cannot be made: KeyError: '9x9'"):
        make(id="FrozenLake-v1", kwargs={"map_name": "9x9"})


def test_an_entry_point_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r"Acrobot-v1.*doesn't have a vector entry point.*'sync'"):
        make(id="Acrobot-v1", vectorization="entry_point")


def test_continuous_actions_are_refused():
    with pytest.raises(SpecError, match="expected a Discrete space"):
        make(id="Pendulum-v1")


def test_an_env_fn_must_return_an_environment():
    with pytest.raises(EnvironmentFault, match=r"env_fn: returned a dict: expected a new gymnasium.Env"):
        make_group(EnvConfig(), 1, seeds(1), env_fn=dict)


def test_an_env_fn_must_return_a_new_environment_each_time():
    env = three_step.ThreeStep()
    with pytest.raises(EnvironmentFault, match="same environment twice"):
        make_group(EnvConfig(), 2, seeds(2), env_fn=lambda: env)


def test_environments_made_before_a_failing_one_are_closed():
    closed = []

    class Closing(three_step.ThreeStep):
        def close(self):
            closed.append(self)

    made = iter([Closing(), Closing()])
    with pytest.raises(EnvironmentFault, match="env_fn cannot be made: StopIteration"):
        make_group(EnvConfig(), 3, seeds(3), env_fn=lambda: next(made))
    assert len(closed) == 2


def test_each_environment_needs_a_seed():
    with pytest.raises(ValueError, match="one seed for each of 3"):
        make_group(EnvConfig(), 3, seeds(2))


def test_an_unknown_environment_of_seedflow_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'seedflow/Synthetic-v0'\?"):
        make(id="seedflow/Sinthetic-v0")


def test_wrappers_apply_to_an_env_fn_innermost_first():
    config = EnvConfig(
        wrappers=(
            {"gymnasium.wrappers:TimeAwareObservation": {"normalize_time": False}},
            {"gymnasium.wrappers:FlattenObservation": {}},
            {"select_observation": {"indices": [2, 1]}},
        )
    )
    with make_group(
        config, 2, seeds(2), env_fn=lambda: gym.wrappers.TimeLimit(three_step.ThreeStep(), 3)
    ) as group:
        history = record(group, 3)
    assert group.spec.observation[0].shape == (2,)
    np.testing.assert_array_equal(history["observation"][:, 0], [[0, 0], [1, 1], [2, 2], [3, 3]])

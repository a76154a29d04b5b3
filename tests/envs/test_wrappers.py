"""Wrappers by name."""

import numpy as np
import pytest

from seedflow.config import EnvConfig
from seedflow.envs import make_group
from seedflow.envs.wrappers import load_env_wrapper, parse_wrappers
from seedflow.errors import ConfigError
from tests.envs.conformance import GroupConformance, record, seeds

HIDE_VELOCITIES = {"select_observation": {"indices": [0, 2]}}


class TestSelectObservation(GroupConformance):
    steps = 100

    def make(self, seeds):
        return make_group(EnvConfig(id="CartPole-v1", wrappers=(HIDE_VELOCITIES,)), len(seeds), seeds)


def test_select_observation_hides_the_velocities_of_cartpole_and_nothing_else():
    with make_group(EnvConfig(), 3, seeds(3)) as group:
        whole = record(group, 30)
    with make_group(EnvConfig(wrappers=(HIDE_VELOCITIES,)), 3, seeds(3)) as group:
        assert group.spec.observation[0].shape == (2,)
        assert group.spec.observation[0].dtype == np.float32
        selected = record(group, 30)
    np.testing.assert_array_equal(selected["observation"], whole["observation"][..., [0, 2]])
    for name in ("reward", "terminated", "truncated", "first", "frames"):
        np.testing.assert_array_equal(selected[name], whole[name])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": [0, 4]}, r"indices = \[0, 4\]: expected a list of integers in \[0, 4\)"),
        ({"indices": [-1]}, r"indices = \[-1\]"),
        ({"indices": []}, r"indices = \[\]"),
        ({"indices": 2}, "indices = 2"),
        ({"indices": [0.5]}, r"indices = \[0.5\]"),
        ({}, "select_observation with {}.*indices"),
        ({"indexes": [0]}, "indexes"),
        ({"indices": [0], "leaf": "observatoin"}, "did you mean 'observation'"),
    ],
)
def test_select_observation_names_a_wrong_argument(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make_group(EnvConfig(wrappers=({"select_observation": arguments},)), 1, seeds(1))


def test_select_observation_refuses_an_image():
    config = EnvConfig(id="seedflow/Synthetic-v0", wrappers=(HIDE_VELOCITIES,))
    with pytest.raises(ConfigError, match=r"observation has shape \(84, 84\): expected one dimension"):
        make_group(config, 1, seeds(1))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            ["select_observaton"],
            r"env.wrappers\[0\] = 'select_observaton'.*did you mean 'select_observation'\?",
        ),
        ([{"a": {}, "b": {}}], r"env.wrappers\[0\] = .*expected a name or one {name: arguments} pair"),
        ([{"select_observation": [0, 2]}], r"expected its arguments as a mapping"),
        ([HIDE_VELOCITIES, "pkg.module:Wrapper"], r"env.wrappers\[1\] = 'pkg.module:Wrapper'.*put it first"),
    ],
)
def test_a_wrong_entry_is_named_by_its_place_in_the_config(entries, message):
    with pytest.raises(ConfigError, match=message):
        parse_wrappers(entries)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Wrapper", r"'no_such_module:Wrapper' cannot be imported"),
        ("gymnasium.wrappers:TimeAwareObservaton", r"did you mean 'TimeAwareObservation'\?"),
        ("gymnasium.wrappers:timelimit", r"did you mean 'TimeLimit'\?"),
        ("gymnasium.wrappers:Zzzz", r"has no 'Zzzz': expected the name of a class or function in it$"),
        ("gymnasium.wrappers:__name__", r"has no wrapper '__name__'"),
    ],
)
def test_a_missing_module_or_class_of_a_wrapper_is_named(name, message):
    [[call], _] = parse_wrappers([name])
    with pytest.raises(ConfigError, match=message):
        load_env_wrapper(call)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TimeLimit", "gymnasium.wrappers:TimeLimit"),
        ("TimeAwareObservations", "gymnasium.wrappers:TimeAwareObservation"),
        ("gymnasium.wrappers.TimeLimit", "gymnasium.wrappers:TimeLimit"),
        ("select_observations", "select_observation"),
    ],
)
def test_a_plain_name_of_a_wrapper_of_gymnasium_is_recognized(name, meant):
    with pytest.raises(ConfigError, match=rf"env.wrappers\[0\] = '{name}'.*did you mean '{meant}'\?"):
        parse_wrappers([name])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"gymnasium.wrappers:TimeLimit": {"max_stepz": 3}}, r"TimeLimit with {'max_stepz': 3}: TypeError"),
        ("gymnasium.wrappers:TimeLimit", r"TimeLimit: TypeError: .*max_episode_steps"),
        ("builtins:id", r"builtins:id: returned a int, expected a gymnasium.Env"),
    ],
)
def test_a_wrapper_that_does_not_fit_is_named_with_its_arguments(entry, message):
    with pytest.raises(ConfigError, match=message):
        make_group(EnvConfig(id="CartPole-v1", wrappers=(entry,)), 1, seeds(1))


def test_an_explicit_entry_point_cannot_be_combined_with_per_environment_wrappers():
    config = EnvConfig(
        id="CartPole-v1", vectorization="entry_point", wrappers=("gymnasium.wrappers:TimeAwareObservation",)
    )
    with pytest.raises(ConfigError, match=r"TimeAwareObservation.*expected 'auto' or 'sync'"):
        make_group(config, 1, seeds(1))

"""Specs of nested spaces, and flattening observations in their order."""

import json

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.errors import SpecError
from seedflow.specs import (
    OBSERVATION_DTYPES,
    ArraySpec,
    EnvSpec,
    flatten_observation,
    leaf_of,
    observation_leaves,
)

ROBOT = gym.spaces.Dict(
    {
        "velocity": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "camera": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
        "state": gym.spaces.Tuple(
            (
                gym.spaces.Discrete(5),
                gym.spaces.Tuple((gym.spaces.Box(-1, 1, (), np.float64), gym.spaces.MultiBinary(3))),
            )
        ),
    }
)


def test_leaves_are_named_by_their_path_and_keep_shape_and_dtype():
    assert [(leaf.name, leaf.shape, leaf.dtype.name) for leaf in observation_leaves(ROBOT)] == [
        ("observation/camera", (4, 4, 3), "uint8"),
        ("observation/state/0", (), "int64"),
        ("observation/state/1/0", (), "float64"),
        ("observation/state/1/1", (3,), "int8"),
        ("observation/velocity", (2,), "float32"),
    ]


def test_a_box_is_the_one_leaf_observation():
    [leaf] = observation_leaves(gym.spaces.Box(0, 255, (84, 84), np.uint8))
    assert leaf == ArraySpec("observation", (84, 84), np.dtype("uint8"))
    assert leaf.nbytes == 7056


def test_a_box_without_dimensions_is_one_number():
    [leaf] = observation_leaves(gym.spaces.Box(-1, 1, (), np.float16))
    assert (leaf.shape, leaf.nbytes) == ((), 2)


@pytest.mark.parametrize("dtype", OBSERVATION_DTYPES)
def test_every_supported_dtype_is_kept(dtype):
    [leaf] = observation_leaves(gym.spaces.Box(0, 1, (2,), np.dtype(dtype)))
    assert leaf.dtype == dtype


def test_an_observation_with_keys_out_of_order_is_flattened_in_the_order_of_its_space():
    observation = {
        "velocity": "velocity",
        "state": ("state/0", ("state/1/0", "state/1/1")),
        "camera": "camera",
    }
    flat = list(flatten_observation(observation, ROBOT))
    assert [f"observation/{leaf}" for leaf in flat] == [leaf.name for leaf in observation_leaves(ROBOT)]


def test_a_space_that_keeps_its_own_key_order_keeps_it_in_the_leaves():
    space = gym.spaces.Dict({"b": gym.spaces.Discrete(2), "a": gym.spaces.Discrete(3)}, sort_keys=False)
    assert [leaf.name for leaf in observation_leaves(space)] == ["observation/b", "observation/a"]
    assert list(flatten_observation({"a": 1, "b": 2}, space)) == [2, 1]


@given(st.integers(0, 2**31 - 1))
@settings(max_examples=20)
def test_samples_of_a_space_flatten_to_the_shapes_of_its_leaves(seed):
    ROBOT.seed(seed)
    sample = ROBOT.sample()
    for observation in (flatten_observation(sample), flatten_observation(sample, ROBOT)):
        for leaf, value in zip(observation_leaves(ROBOT), observation, strict=True):
            assert np.shape(value) == leaf.shape
            assert np.asarray(value).dtype == leaf.dtype


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"camera": 1, "velocity": 2}, r"observation must be a mapping with the keys .*'state'"),
        ({"camera": 1, "velocity": 2, "state": (1, (2, 3)), "x": 4}, r"observation must be a mapping .*'x'"),
        ({"camera": 1, "velocity": 2, "state": (1,)}, r"observation/state must be a tuple of the 2 parts"),
        (
            {"camera": 1, "velocity": 2, "state": (1, 2)},
            r"observation/state/1 must be a tuple of the 2 parts",
        ),
        (np.zeros(3), r"observation must be a mapping"),
    ],
)
def test_an_observation_unlike_its_space_is_refused_by_the_name_of_the_part(observation, message):
    with pytest.raises(SpecError, match=message):
        list(flatten_observation(observation, ROBOT))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Dict(story=gym.spaces.Text(5)), "observation/story is a Text space"),
        (
            gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Sequence(gym.spaces.Discrete(2)))),
            "observation/1 is a Sequence space",
        ),
        (gym.spaces.Dict(map=gym.spaces.Box(0, 1, (2,), np.uint16)), "observation/map has dtype uint16"),
    ],
)
def test_a_space_that_cannot_be_carried_is_refused_by_the_name_of_the_leaf(space, message):
    with pytest.raises(SpecError, match=message):
        observation_leaves(space)


def test_only_discrete_actions_are_accepted():
    with pytest.raises(SpecError, match=r"action space Box.*expected a Discrete space"):
        EnvSpec.from_spaces(ROBOT, gym.spaces.Box(-1, 1, (2,)))


def test_a_spec_survives_json_with_its_fingerprint():
    spec = EnvSpec.from_spaces(ROBOT, gym.spaces.Discrete(3, start=-1))
    again = EnvSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.fingerprint == spec.fingerprint
    assert (again.num_actions, again.action_start) == (3, -1)


def test_categories_are_counted_from_their_lowest():
    kind, place, speed = observation_leaves(
        gym.spaces.Tuple(
            (gym.spaces.Discrete(3, start=-1), gym.spaces.MultiDiscrete([[2, 4]]), gym.spaces.Box(0, 1))
        )
    )
    assert (kind.shape, kind.categories, kind.lowest) == ((), (3,), (-1,))
    assert (place.shape, place.categories, place.lowest) == ((1, 2), (2, 4), (0, 0))
    assert (speed.categories, speed.lowest) == ((), ())
    for leaf in (kind, place, speed):
        assert ArraySpec.from_json(json.loads(json.dumps(leaf.to_json()))) == leaf
    with pytest.raises(ValueError, match="2 categories for the shape"):
        ArraySpec.from_json(kind.to_json() | {"categories": [3, 3]})


def test_the_fingerprint_tells_specs_apart():
    box = gym.spaces.Box(0, 1, (2,), np.float32)
    base = EnvSpec.from_spaces(box, gym.spaces.Discrete(2))
    others = [
        EnvSpec.from_spaces(box, gym.spaces.Discrete(3)),
        EnvSpec.from_spaces(box, gym.spaces.Discrete(2, start=1)),
        EnvSpec.from_spaces(gym.spaces.Box(0, 1, (2,), np.float64), gym.spaces.Discrete(2)),
        EnvSpec.from_spaces(gym.spaces.Box(0, 1, (2, 1), np.float32), gym.spaces.Discrete(2)),
    ]
    assert len({spec.fingerprint for spec in [base, *others]}) == 5


def test_leaves_are_found_by_name_whatever_the_order_of_keys() -> None:
    space = gym.spaces.Dict(
        b=gym.spaces.Box(0, 1, (2,)), a=gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Box(0, 1, ())))
    )
    leaves = observation_leaves(space)
    nested = {"b": np.array([[1.0, 2.0]]), "a": (np.array([2]), np.array([0.5]))}
    found = {leaf.name: leaf_of(nested, leaf).tolist() for leaf in leaves}
    assert found == {
        "observation/a/0": [2],
        "observation/a/1": [0.5],
        "observation/b": [[1.0, 2.0]],
    }
    flat = {name: np.array(value) for name, value in found.items()}
    assert [leaf_of(flat, leaf).tolist() for leaf in leaves] == list(found.values())
    with pytest.raises(SpecError, match="no part observation/a/1"):
        leaf_of({"a": (1,), "b": 2}, next(leaf for leaf in leaves if leaf.name.endswith("a/1")))

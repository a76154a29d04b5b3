"""Encoders and the observations that they take."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from seedflow.config import NetworkConfig
from seedflow.errors import ConfigError
from seedflow.networks import ActorCritic, NetworkInput
from seedflow.networks.encoders import FlatLeaf
from seedflow.networks.images import check_encoder
from seedflow.specs import ArraySpec, EnvSpec, observation_leaves


def leaf(name: str, shape: tuple[int, ...], dtype: str) -> ArraySpec:
    return ArraySpec(f"observation/{name}", shape, np.dtype(dtype))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "bool", "float16"])
def test_the_mlp_takes_leaves_of_any_dtype(dtype: str) -> None:
    spec = EnvSpec((leaf("a", (3,), dtype), leaf("b", (), "float32")), num_actions=2)
    network = ActorCritic(spec, NetworkConfig())
    inputs = (torch.ones(5, 2, 3).to(getattr(torch, dtype)), torch.ones(5, 2))
    output, _ = network(NetworkInput(inputs, torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.bool)), ())
    assert output.logits.shape == (5, 2, 2)
    assert output.logits.dtype == torch.float32
    assert output.value.shape == (5, 2)


@pytest.mark.parametrize("shape", [(36, 40), (3, 36, 40), (36, 40, 3)])
def test_the_nature_encoder_finds_the_channels(shape: tuple[int, ...]) -> None:
    spec = EnvSpec((leaf("image", shape, "uint8"), leaf("speed", (2,), "float32")), num_actions=2)
    config = NetworkConfig(encoder="nature", features=8, frame_stack={"depth": 2})  # type: ignore[arg-type]
    network = ActorCritic(spec, config)
    channels = network.encoder.convolutions[0].in_channels  # type: ignore[union-attr]
    assert channels == 2 * (3 if len(shape) == 3 else 1)
    state = tuple(torch.zeros(4, *s.shape, dtype=getattr(torch, s.dtype.name)) for s in network.state_specs)
    inputs = (torch.zeros(1, 4, *shape, dtype=torch.uint8), torch.zeros(1, 4, 2))
    output, _ = network(NetworkInput(inputs, torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.bool)), state)
    assert output.logits.shape == (1, 4, 2)


def test_the_nature_encoder_says_what_it_lacks() -> None:
    vector = EnvSpec((leaf("speed", (2,), "float32"),), num_actions=2)
    with pytest.raises(ConfigError, match=r"exactly one image leaf.*observation/speed.*encoder=mlp"):
        ActorCritic(vector, NetworkConfig(encoder="nature"))


@pytest.mark.parametrize(("kind", "least"), [("nature", 36), ("shallow", 20)])
def test_the_smallest_image_of_an_encoder(kind: Any, least: int) -> None:
    config = NetworkConfig(encoder=kind, features=8)
    ActorCritic(EnvSpec((leaf("image", (least, least), "uint8"),), num_actions=2), config)
    small = EnvSpec((leaf("image", (least, least - 1), "uint8"),), num_actions=2)
    with pytest.raises(ConfigError, match=rf"of {least} x {least - 1}: it needs at least {least} x {least}"):
        check_encoder(config, small)


def test_categories_are_one_hot_and_numbers_stay() -> None:
    space = gym.spaces.Dict(
        kind=gym.spaces.Discrete(3, start=-1),
        many=gym.spaces.MultiDiscrete([2, 4]),
        speed=gym.spaces.Box(-1, 1),
    )
    kind, many, speed = observation_leaves(space)
    flat = [FlatLeaf(leaf, depth=2) for leaf in (kind, many, speed)]
    assert [module.size for module in flat] == [2 * 3, 2 * 6, 2]
    assert flat[0](torch.tensor([[-1, 1], [0, 7]])).tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 0]]
    assert flat[1](torch.tensor([[[1, 3], [0, 0]]])).tolist() == [[0, 1, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0]]
    assert flat[2](torch.tensor([[[0.5], [0.25]]])).tolist() == [[0.5, 0.25]]


@pytest.mark.parametrize("encoder", ["mlp", "shallow"])
def test_a_network_over_categories_takes_them_as_integers(encoder: Any) -> None:
    """No weight belongs to a buffer that one-hot encoding needs."""
    space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (20, 20), np.uint8),
        kind=gym.spaces.Discrete(5),
        place=gym.spaces.Discrete(7),
    )
    spec = EnvSpec.from_spaces(space, gym.spaces.Discrete(2))
    network = ActorCritic(spec, NetworkConfig(encoder=encoder, hidden=(8,), features=8))
    inputs = (torch.zeros(3, 2, 20, 20, dtype=torch.uint8), torch.full((3, 2), 4), torch.full((3, 2), 6))
    output, _ = network(NetworkInput(inputs, torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.bool)), ())
    assert output.logits.shape == (3, 2, 2)
    assert {name.rpartition(".")[2] for name in network.state_dict()} == {"weight", "bias"}

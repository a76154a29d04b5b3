"""Encoders and the observations that they take."""

from typing import Any

import numpy as np
import pytest
import torch

from seedflow.config import NetworkConfig
from seedflow.errors import ConfigError
from seedflow.networks import ActorCritic, NetworkInput
from seedflow.networks.images import check_encoder
from seedflow.specs import ArraySpec, EnvSpec


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

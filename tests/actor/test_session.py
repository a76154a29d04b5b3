"""What an actor reads in its start message."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from seedflow.actor.start import ActorStart, shape_of
from seedflow.config import parse_config
from seedflow.errors import ConfigError
from tests.actor.conftest import make_config, spec_of


def make_message(**more: Any) -> dict[str, Any]:
    config = make_config(actor={"groups": 3, "envs_per_group": 4}, eval={"envs": more.pop("envs", 4)})
    return {
        "config": config.model_dump(mode="json"),
        "spec": spec_of(config).to_json(),
        "token": "hush",
        "role": "train",
        "index": 2,
        "generation": 1,
        "endpoint": {"socket": None, "gateway": None},
        "env_fn": None,
        **more,
    }


def test_training_actor_has_the_shape_of_the_config() -> None:
    start = ActorStart.parse(make_message())
    assert shape_of(start.config, start.role) == (3, 4)
    assert start.spec == spec_of(start.config)
    assert "hush" not in repr(start)


@pytest.mark.parametrize(
    ("envs", "shape"), [(1, (1, 1)), (4, (1, 4)), (6, (2, 3)), (9, (3, 3)), (12, (3, 4))]
)
def test_evaluation_environments_are_spread_over_as_few_groups_as_fit(
    envs: int, shape: tuple[int, int]
) -> None:
    start = ActorStart.parse(make_message(role="eval", envs=envs))
    assert shape_of(start.config, start.role) == shape


@pytest.mark.parametrize("envs", [7, 13, 14])
def test_evaluation_environments_that_do_not_fit_are_a_config_error(envs: int) -> None:
    shape = {"groups": 3, "envs_per_group": 4}
    with pytest.raises(ConfigError, match=rf"eval.envs = {envs} cannot be split"):
        parse_config({"actor": shape, "eval": {"every": 100, "envs": envs}})
    start = ActorStart.parse(make_message(role="eval", envs=envs))  # of a run that does not evaluate
    with pytest.raises(ConfigError, match=rf"eval.envs = {envs} does not fit"):
        shape_of(start.config, start.role)


def test_environment_function_arrives_as_bytes() -> None:
    text = base64.b64encode(b"pickle").decode()
    assert ActorStart.parse(make_message(env_fn=text)).env_fn == b"pickle"
    with pytest.raises(ConfigError, match="start message is wrong"):
        ActorStart.parse(make_message(env_fn="no base64!"))


def test_missing_part_is_named() -> None:
    message = make_message()
    del message["index"]
    with pytest.raises(ConfigError, match="lacks 'index'"):
        ActorStart.parse(message)

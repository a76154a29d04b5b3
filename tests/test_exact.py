"""A run in one process that goes on exactly: the same bits as if it had never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seedflow.config import load_config, parse_config
from seedflow.envs import env_seed, make_group
from seedflow.envs.base import allocate_rows
from seedflow.errors import ConfigError
from seedflow.train import train
from tests.exact_runs import EXACT, digest, exact_config
from tests.small_runs import small_config

TOTAL = 700


@pytest.mark.parametrize("algorithm", ["vtrace", "r2d2"])
def test_a_run_that_was_stopped_and_resumed_has_the_bits_of_one_that_was_not(
    tmp_path: Path, algorithm: str
) -> None:
    train(exact_config(algorithm, TOTAL), run_dir=tmp_path / "whole")
    whole = digest(tmp_path / "whole")
    for total in (37, 150, 163, 400, TOTAL):
        run_dir = tmp_path / "parts"
        train(exact_config(algorithm, total), run_dir=run_dir, resume_or_start=True)
    parts = digest(tmp_path / "parts")
    assert parts.keys() == whole.keys()
    assert [name for name in whole if parts[name] != whole[name]] == []


def test_without_it_a_resumed_run_begins_new_episodes_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"metrics": {"console": "plain"}}
    train(small_config(train={"total_agent_steps": 100}, **plain), run_dir=tmp_path)
    train(small_config(train={"total_agent_steps": 200}, **plain), run_dir=tmp_path, resume=True)
    assert "episodes that were under way begin anew" in capsys.readouterr().out


def test_under_other_settings_a_run_goes_on_all_the_same_but_not_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = {"metrics": {"console": "plain"}}
    train(exact_config("vtrace", 100, **plain), run_dir=tmp_path)
    more = exact_config("vtrace", 200, actor={"count": 1}, **plain)
    train(more, run_dir=tmp_path, resume=True)
    said = capsys.readouterr().out
    assert "does not go on exactly, and begins new episodes: settings of actor have changed" in said


def test_an_open_episode_is_played_again_to_the_same_place() -> None:
    env = load_config("cartpole_vtrace", ["env.exact=true", "runtime=inline"]).env
    seeds = [env_seed(1, "actor", i, 0) for i in range(3)]
    rng = np.random.default_rng(0)
    with make_group(env, 3, seeds) as one, make_group(env, 3, seeds) as other:
        rows, again = allocate_rows(one.spec, 3), allocate_rows(one.spec, 3)
        one.reset(rows)
        for _ in range(137):
            one.step(rng.integers(0, 2, 3), rows)
        episodes = one.open_episodes()
        assert all(episode.number > 0 for episode in episodes)
        other.reopen(episodes)
        for _ in range(60):
            actions = rng.integers(0, 2, 3)
            one.step(actions, rows)
            other.step(actions, again)
            for name in rows:
                np.testing.assert_array_equal(rows[name], again[name], err_msg=name)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"id": "seedflow/Synthetic-v0"}, "is one vector environment whose episodes share"),
        ({"id": "CartPole-v1", "vectorization": "entry_point"}, "is one vector environment"),
    ],
)
def test_a_vector_environment_is_refused_with_the_reason(env: dict[str, Any], message: str) -> None:
    config = parse_config({"runtime": "inline", "env": {**env, **EXACT}})
    with pytest.raises(ConfigError, match=message):
        make_group(config.env, 2, [env_seed(1, "actor", i, 0) for i in range(2)])


def test_outside_of_one_process_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env.exact = true, but runtime = 'local'"):
        parse_config({"runtime": "local", "env": EXACT})

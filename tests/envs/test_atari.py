"""Atari games as groups."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from seedflow.config import EnvConfig
from seedflow.envs import allocate_rows, make_group
from seedflow.errors import ConfigError, SpecError
from tests.envs.conformance import GroupConformance, episodes, record, seeds

ale_py = pytest.importorskip("ale_py")


def make(num_envs=2, env_id="ALE/Breakout-v5", **config):
    return make_group(EnvConfig(id=env_id, **config), num_envs, seeds(num_envs))


SHORT = {"max_num_frames_per_episode": 60}


class TestBreakout(GroupConformance):
    num_envs = 2

    def make(self, seeds):
        return make_group(EnvConfig(id="ALE/Breakout-v5", kwargs=SHORT), len(seeds), seeds)


class TestLifeLoss(GroupConformance):
    num_envs = 2
    loses_lives = True

    def make(self, seeds):
        kwargs = {"life_loss_info": True, "max_num_frames_per_episode": 140}
        return make_group(EnvConfig(id="ALE/Breakout-v5", kwargs=kwargs), len(seeds), seeds)


class TestWrappedBreakout(GroupConformance):
    num_envs = 2

    def make(self, seeds):
        config = EnvConfig(id="ALE/Breakout-v5", vectorization="sync", kwargs=SHORT)
        return make_group(config, len(seeds), seeds)


def play(group, action_seed=0):
    """Rows of one whole game of a group of one, up to the first of the next."""
    rng = np.random.default_rng(action_seed)
    rows = allocate_rows(group.spec, 1)
    group.reset(rows)
    history = [{name: array.copy() for name, array in rows.items()}]
    for _ in range(2_000):
        group.step(rng.integers(group.spec.num_actions, size=1), rows)
        history.append({name: array.copy() for name, array in rows.items()})
        if rows["first"][0]:
            return {name: np.stack([row[name] for row in history]) for name in rows}
    raise AssertionError("the game did not end")


def test_a_row_holds_one_grey_frame_of_84_by_84():
    with make() as group:
        [leaf] = group.spec.observation
        assert (leaf.name, leaf.shape, leaf.dtype) == ("observation", (84, 84), np.uint8)
        assert group.spec.num_actions == 4
        history = record(group, 3)
    assert history["observation"][-1].std() > 0


def test_the_vector_environment_and_wrapped_single_ones_agree_on_the_spec():
    with make() as vector, make(vectorization="sync") as single:
        assert vector.spec == single.spec


def test_settings_of_the_library_replace_the_defaults():
    kwargs = {"stack_num": 4, "img_height": 64, "img_width": 72, "full_action_space": True}
    with make(kwargs=kwargs) as group:
        assert group.spec.observation[0].shape == (4, 64, 72)
        assert group.spec.num_actions == 18
    with make(kwargs={"grayscale": False}) as group:
        assert group.spec.observation[0].shape == (84, 84, 3)
    kwargs = {"img_height": 64, "img_width": 72, "noop_max": 0, "frameskip": 2}
    with make(vectorization="sync", kwargs=kwargs) as group:
        assert group.spec.observation[0].shape == (64, 72)
        assert (record(group, 3)["frames"][1:] == 2).all()


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_frames_are_those_that_the_emulator_ran(vectorization):
    """A life lasts 4 frames a step; the transition that loses the last one is cut short."""
    with make(num_envs=1, vectorization=vectorization) as group:
        game = play(group)
    frames, ended = game["frames"][1:-1, 0], game["terminated"][1:-1, 0]
    assert (frames[~ended] == 4).all()
    assert 1 <= frames[ended] <= 4
    assert game["frames"][-1] == 0


def test_an_episode_begins_with_as_many_no_ops_as_allowed_at_most():
    with make(num_envs=8, kwargs={"noop_max": 1}) as group:
        group.reset(allocate_rows(group.spec, 8))
        assert set(group._inner._frame) == {0, 1}


def test_the_time_limit_truncates_after_its_frames_without_the_no_ops():
    kwargs = {"max_num_frames_per_episode": 90, "use_fire_reset": False}
    with make(kwargs=kwargs) as group:
        history = record(group, 60)
    assert history["truncated"].sum() == 4
    assert not history["terminated"].any()
    assert {frames for _, _, frames in episodes(history)} == {90}


def test_rewards_of_breakout_sum_to_the_raw_score_over_all_lives():
    """The same game is played on the bare emulator, and its own rewards summed."""
    with make(num_envs=1, kwargs={"noop_max": 0}) as group:
        game = play(group, action_seed=5)
    actions = np.random.default_rng(5)
    bare = gym.make("ALE/Breakout-v5", frameskip=1, repeat_action_probability=0.0)
    bare.reset(seed=0)
    score = 0.0
    for frames in game["frames"][1:-1, 0]:
        action = actions.integers(4, size=1)[0]
        for _ in range(frames):
            _, reward, over, _, info = bare.step(action)
            score += float(reward)
    bare.close()
    assert over
    assert info["lives"] == 0
    assert game["reward"].sum() == score
    assert score > 0


def test_rewards_are_not_clipped():
    """Space Invaders pays 5 points and more for whatever is hit."""
    with make(env_id="ALE/SpaceInvaders-v5", num_envs=1) as group:
        rewards = record(group, 150)["reward"]
    assert rewards.max() >= 5


def test_a_lost_life_that_counts_is_terminated_without_a_new_episode():
    with make(num_envs=1, kwargs={"life_loss_info": True}) as group:
        counted = play(group)
    with make(num_envs=1) as group:
        plain = play(group)
    np.testing.assert_array_equal(counted["first"], plain["first"])
    np.testing.assert_array_equal(counted["reward"], plain["reward"])
    assert counted["terminated"].sum() == 5
    assert plain["terminated"].sum() == 1


def test_a_life_as_an_episode_is_off_unless_asked_for():
    with make(kwargs={"episodic_life": True}) as group:
        history = record(group, 120)
    np.testing.assert_array_equal(history["first"][1:], history["terminated"][:-1])
    assert history["terminated"].sum() >= 2


def test_a_per_environment_wrapper_gets_preprocessed_games():
    wrapper = "gymnasium.wrappers:FlattenObservation"
    with make(wrappers=(wrapper, {"select_observation": {"indices": [0, 7]}})) as group:
        assert group.spec.observation[0].shape == (2,)
        record(group, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"frame_skip": 2}, r"env.kwargs.frame_skip is no setting.*did you mean 'frameskip'\?"),
        ({"num_envs": 2}, r"env.kwargs.num_envs cannot be set.*actor.envs_per_group"),
        ({"autoreset_mode": "SameStep"}, r"env.kwargs.autoreset_mode cannot be set.*NEXT_STEP"),
    ],
)
def test_a_wrong_setting_is_named(kwargs, message):
    with pytest.raises(ConfigError, match=message):
        make(kwargs=kwargs)


def test_settings_that_single_games_lack_are_refused_there():
    with pytest.raises(ConfigError, match=r"env.kwargs.life_loss_info is no setting"):
        make(kwargs={"life_loss_info": True}, vectorization="sync")


def test_an_unknown_game_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"'ALE/Breakuot-v5'.*did you mean 'ALE/Breakout-v5'\?"):
        make(env_id="ALE/Breakuot-v5")


def test_continuous_actions_are_refused():
    with pytest.raises(SpecError, match="expected a Discrete space"):
        make(kwargs={"continuous": True})


@pytest.mark.parametrize("vectorization", ["auto", "sync"])
def test_without_ale_py_the_message_holds_the_install_command(monkeypatch, vectorization):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r'ALE/Pong-v5.*pip install "seedflow\[atari\]"'):
        make(env_id="ALE/Pong-v5", vectorization=vectorization)


def test_without_opencv_only_wrapped_games_fail(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    make().close()
    with pytest.raises(ConfigError, match=r'OpenCV.*pip install "seedflow\[atari\]"'):
        make(vectorization="sync")

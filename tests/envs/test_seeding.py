"""Seeds of environments and everything else random."""

import numpy as np
import pytest

from seedflow.envs.seeding import ROLES, env_seed, joint_seed, seed_integer


def test_no_two_streams_of_neighbouring_runs_share_a_seed():
    drawn = [
        seed_integer(env_seed(run_seed, role, env_id, incarnation))
        for run_seed in range(3)
        for role in ROLES
        for env_id in range(20)
        for incarnation in range(3)
    ]
    assert len(set(drawn)) == len(drawn)


def test_seeds_stay_the_same_between_releases():
    assert env_seed(7, "actor", 2, 1).spawn_key == (0, 2, 1)
    assert env_seed(7, "eval", 2, 1).spawn_key == (1, 2, 1)
    assert env_seed(7, "weights", 0, 0).entropy == 7


def test_integers_of_a_seed_repeat_and_fit_31_bits():
    seed = env_seed(1, "actor", 0, 0)
    draws = [seed_integer(seed, k) for k in range(50)]
    assert draws == [seed_integer(seed, k) for k in range(50)]
    assert len(set(draws)) == 50
    assert all(0 <= draw < 2**31 for draw in draws)


def test_a_joint_seed_depends_on_every_part():
    parts = [env_seed(1, "actor", i, 0) for i in range(3)]
    changed = [*parts[:2], env_seed(1, "actor", 2, 1)]
    assert seed_integer(joint_seed(parts)) == seed_integer(joint_seed(parts))
    assert seed_integer(joint_seed(parts)) != seed_integer(joint_seed(changed))


def test_an_unknown_role_is_refused():
    with pytest.raises(ValueError, match="unknown seed role 'actors': expected one of actor, eval"):
        env_seed(1, "actors", 0, 0)


def test_a_stream_is_what_numpy_derives_from_the_spawn_key():
    expected = np.random.SeedSequence(3, spawn_key=(0, 4, 2)).generate_state(4)
    np.testing.assert_array_equal(env_seed(3, "actor", 4, 2).generate_state(4), expected)

"""Seeds of everything random: one stream per role, environment and incarnation of its actor.

A stream is a child of ``numpy.random.SeedSequence(run_seed)`` named by its spawn key, so that no two
streams of a run overlap, neighbouring run seeds share nothing, and a restarted actor (the next
incarnation) does not replay the episodes of the one before it.

Examples
--------
>>> env_seed(1, "actor", 3, 0).generate_state(1)[0] == env_seed(1, "actor", 3, 1).generate_state(1)[0]
np.False_
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROLES = {"actor": 0, "eval": 1, "weights": 2, "sampling": 3, "evaluate": 4, "replay": 5}
"""Number of each role in a spawn key. Never renumber: runs would no longer repeat."""


def env_seed(run_seed: int, role: str, env_id: int, incarnation: int) -> np.random.SeedSequence:
    """Seed of one stream of a run.

    Parameters
    ----------
    run_seed
        The run's ``seed`` setting.
    role
        ``"actor"``, ``"eval"`` (during training), ``"evaluate"`` (of a finished run), ``"weights"``,
        ``"sampling"`` or ``"replay"``.
    env_id
        Index of the environment within its role (0 where there is only one stream).
    incarnation
        How often the owner of the stream was started before.

    Raises
    ------
    ValueError
        For an unknown role.
    """
    if role not in ROLES:
        raise ValueError(f"unknown seed role {role!r}: expected one of {', '.join(ROLES)}")
    return np.random.SeedSequence(run_seed, spawn_key=(ROLES[role], env_id, incarnation))


def env_ids_of(seeds: Sequence[np.random.SeedSequence]) -> list[int]:
    """The environment ids that seeds of `env_seed` belong to; those of other seeds are counted from 0."""
    return [int(seed.spawn_key[1]) if len(seed.spawn_key) == 3 else i for i, seed in enumerate(seeds)]


def seed_integer(seed: np.random.SeedSequence, draw: int = 0) -> int:
    """The `draw`-th integer of a seed, in [0, 2**31): what environments and C libraries accept."""
    return int(seed.generate_state(draw + 1)[draw]) >> 1


def joint_seed(seeds: Sequence[np.random.SeedSequence]) -> np.random.SeedSequence:
    """One seed made of several, for a back end that takes a single one for all environments."""
    words = [int(word) for seed in seeds for word in seed.generate_state(4)]
    return np.random.SeedSequence(words)

"""Seeds of the learner's own random streams."""

from __future__ import annotations

import numpy as np

from seedflow.envs.seeding import env_seed


def torch_seed(run_seed: int, role: str, incarnation: int = 0) -> int:
    """A seed for torch; the roles ``weights`` and ``sampling`` share no stream with any environment."""
    return int(env_seed(run_seed, role, 0, incarnation).generate_state(1, np.uint64)[0] >> np.uint64(1))

"""Real frames for the replay's benchmark: random play of Atari games."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seedflow.config import EnvConfig
from seedflow.envs import env_seed, make_group
from seedflow.envs.base import allocate_rows

GAMES = ("ALE/Pong-v5", "ALE/Breakout-v5", "ALE/Seaquest-v5")
ENVS = 8


@dataclass(frozen=True)
class Frames:
    """Frames in the order of play, one row per environment.

    Attributes
    ----------
    rows
        uint8 ``[environments, steps, 84, 84]``, all games.
    distinct
        How many of them differ from every other.
    """

    rows: NDArray[np.uint8]
    distinct: int

    def chunks(self, length: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Consecutive chunks of each row, over and over; lanes are numbered anew in every round."""
        lanes, steps = self.rows.shape[:2]
        turn = 0
        while True:
            for begin in range(0, steps - length + 1, length):
                for row in range(lanes):
                    yield turn * lanes + row, self.rows[row, begin : begin + length]
            turn += 1


def play(distinct: int, seed: int = 1) -> Frames:
    """Play all of `GAMES` at random, step by step alike, until there are `distinct` frames."""
    generator = np.random.default_rng(seed)
    steps: list[NDArray[np.uint8]] = []
    seen: set[int] = set()
    with ExitStack() as stack:
        groups = []
        for game in GAMES:
            seeds = [env_seed(seed, "evaluate", i, 0) for i in range(ENVS)]
            group = stack.enter_context(make_group(EnvConfig(id=game), ENVS, seeds))
            rows = allocate_rows(group.spec, ENVS)
            group.reset(rows)
            groups.append((group, rows))
        while len(seen) < distinct:
            frames = np.concatenate([rows["observation"] for _, rows in groups])
            seen.update(hash(frame.tobytes()) for frame in frames)
            steps.append(frames)
            for group, rows in groups:
                group.step(generator.integers(0, group.spec.num_actions, ENVS), rows)
    return Frames(np.stack(steps, axis=1), len(seen))

"""Train on an environment of one's own, then play with the trained policy.

The environment is Catch: a ball falls down a board of 10 rows and 5 columns, and a paddle in the last row
moves left, stays or moves right. The one reward of an episode is 1 for a caught ball and -1 for a missed
one. Acting at random returns about -0.6.

    python examples/own_environment.py

trains in this process for well under a minute. With ``--runtime local`` actors and learner are processes.
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np

import seedflow

ROWS, COLUMNS = 10, 5


class Catch(gymnasium.Env[np.ndarray, int]):
    """Catch the falling ball."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (ROWS, COLUMNS), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row = 0
        self.ball = int(self.np_random.integers(COLUMNS))
        self.paddle = COLUMNS // 2
        return self.board(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), COLUMNS - 1)
        self.row += 1
        over = self.row == ROWS - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if over else 0.0
        return self.board(), reward, over, False, {}

    def board(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS), np.float32)
        board[self.row, self.ball] = 1.0
        board[ROWS - 1, self.paddle] = 1.0
        return board


def play(policy: Any, episodes: int) -> float:
    """Mean return of the policy's most likely actions, one environment at a time."""
    env = Catch()
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        state, first, over = policy.initial_state(1), True, False
        while not over:
            action, state = policy.act(observation[None], state, first=[first], deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action[0]))
            first, over, total = False, terminated or truncated, total + reward
    return total / episodes


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on Catch, then play it.")
    parser.add_argument("--runtime", choices=["inline", "local"], default="inline")
    parser.add_argument("--steps", type=int, default=200_000, help="agent steps of the training")
    parser.add_argument("--run-dir", help="default: a new directory below runs/")
    arguments = parser.parse_args()

    config = seedflow.load_config(
        "cartpole_vtrace",
        {
            "runtime": arguments.runtime,
            "env.id": "Catch",  # with env_fn only a name: of the run directory, in messages
            "train.total_agent_steps": arguments.steps,
            "algo.discount": 1.0,
            "algo.reward_scale": 1.0,  # CartPole's rewards add up to 500, this ball's to 1
            "metrics.every_seconds": 5.0,
        },
    )
    # The function is called on the actors; it is sent there with the class that it uses.
    run = seedflow.train(config, run_dir=arguments.run_dir, env_fn=lambda: Catch())
    policy = seedflow.load_policy(run.dir)
    print(f"mean return over 100 episodes: {play(policy, 100):.2f}")


if __name__ == "__main__":
    main()

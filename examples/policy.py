"""Use a trained policy without the rest: load it from a run directory and step an environment with it.

    seedflow train cartpole_vtrace --run-dir runs/first
    python examples/policy.py runs/first

The environment is made from the run's settings. A run on an environment of one's own (`env_fn`) or with
wrappers needs that environment here instead.
"""

from __future__ import annotations

import argparse

import gymnasium

import seedflow


def main() -> None:
    parser = argparse.ArgumentParser(description="Play with the policy of a run.")
    parser.add_argument("run_dir")
    parser.add_argument("--episodes", type=int, default=5)
    parser.add_argument("--deterministic", action="store_true", help="most likely actions, not sampled ones")
    arguments = parser.parse_args()

    policy = seedflow.load_policy(arguments.run_dir)
    env = gymnasium.make(policy.config.env.id, **policy.config.env.kwargs)
    print(f"checkpoint {policy.generation} of {arguments.run_dir} on {policy.config.env.id}")

    for episode in range(arguments.episodes):
        observation, _ = env.reset(seed=episode)
        state = policy.initial_state(1)
        reward, total, first, over = 0.0, 0.0, True, False
        while not over:
            # The policy works on batches: one environment is a batch of 1. The reward matters only to
            # networks that take the previous one as an input.
            actions, state = policy.act(
                observation[None],
                state,
                first=[first],
                reward=[reward],
                deterministic=arguments.deterministic,
            )
            observation, reward, terminated, truncated, _ = env.step(int(actions[0]))
            first, over = False, terminated or truncated
            total += reward
        print(f"episode {episode}: return {total:g}")
    env.close()


if __name__ == "__main__":
    main()

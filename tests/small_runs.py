"""The smallest runs in one process, for tests of what surrounds a run."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from seedflow.config import Config, parse_config


def small_config(**sections: Any) -> Config:
    base: dict[str, Any] = {
        "runtime": "inline",
        "actor": {"count": 2, "groups": 2, "envs_per_group": 2},
        "rollout": {"unroll": 5},
        "train": {"batch": 4, "total_agent_steps": 600},
        "network": {"hidden": [16]},
        "metrics": {"console": "off", "tensorboard": False, "every_seconds": 0.2},
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values if isinstance(values, dict) else values
    return parse_config(base)


def small_r2d2(**sections: Any) -> Config:
    """As `small_config`, with R2D2 and a replay that is sampled from soon."""
    base: dict[str, Any] = {
        "algo": {"name": "r2d2", "n_step": 2, "target_period": 20},
        "replay": {
            "capacity": 60,
            "chunk": 4,
            "burn_in": 4,
            "unroll": 8,
            "period": 4,
            "min_size": 10,
            "samples_per_insert": 4.0,
            "tolerance": 16.0,
            "decode_threads": 1,
        },
        "network": {
            "hidden": [16],
            "head_size": 16,
            "core": "lstm",
            "core_size": 8,
            "inputs": ["previous_action"],
        },
    }
    for name, values in sections.items():
        base[name] = base.get(name, {}) | values if isinstance(values, dict) else values
    return small_config(**base)


class Constant(gym.Env[np.ndarray, int]):
    """Always the same observation and reward 1; truncated after five steps."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.ones(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.ones(1, np.float32), 1.0, False, self.steps == 5, {}

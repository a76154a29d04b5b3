"""Environments of whole-run tests, named ``run_envs:Staged-v0``, ``Faulty-v0`` and ``Forking-v0``.

They leave marks, files in the directory ``RUN_MARKS``, by which a test sees how far a process is, and can
be told to hang, raise or kill themselves at any such point. A point is ``<process>-<what>``: the process
is ``probe``, ``actor``, or ``main`` (inline runtime, evaluation); what is ``init``, ``reset``,
``step<n>`` (of one environment object, counted from 1) or ``close``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

HANG_SECONDS = 300.0


def process_name() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if spec is not None else "main"
    return {"seedflow.envs.probe": "probe", "seedflow.actor.__main__": "actor"}.get(name, "main")


def marks() -> Path:
    return Path(os.environ["RUN_MARKS"])


def mark(name: str, text: str = "") -> None:
    """Leave a mark, complete at once."""
    path = marks() / name
    if not path.exists():
        draft = path.with_name(f".{name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)


class StagedEnv(gym.Env[Any, Any]):
    """Episodes of `length` steps with reward 1; the observation counts the steps.

    Parameters
    ----------
    hang, fault
        Points at which to hang, until the mark ``go`` is there, and to raise.
    pause
        Seconds that a step takes.
    """

    def __init__(
        self, hang: str | None = None, fault: str | None = None, length: int = 10, pause: float = 0.0
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._hang, self._fault, self._length, self._pause = hang, fault, length, pause
        self._steps = self._t = 0
        self._at("init")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        self._at("reset")
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        self._t += 1
        if self._steps <= 5:
            self._at(f"step{self._steps}")
        if self._pause:
            time.sleep(self._pause)
        return self._observation(), 1.0, self._t >= self._length, False, {}

    def close(self) -> None:
        self._at("close")

    def _observation(self) -> Any:
        return np.full(4, self._t / self._length, np.float32)

    def _at(self, what: str) -> None:
        point = f"{process_name()}-{what}"
        mark(point, "\n".join(sorted(sys.modules)))
        if point == self._fault:
            raise LookupError("no such level: 99")
        if point == self._hang:
            deadline = time.monotonic() + HANG_SECONDS
            while not (marks() / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.01)


def make_forking(num_envs: int, **kwargs: Any) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Environments in processes of their own, forked from the one that asks."""
    mark(f"{process_name()}-forks")
    return gym.vector.AsyncVectorEnv([lambda: StagedEnv(**kwargs)] * num_envs, context="fork")


class FaultyEnv(StagedEnv):
    """Goes wrong in an actor, by chance or at one step.

    Parameters
    ----------
    kind
        ``crash`` kills its own process, ``hold`` hangs in code that holds the interpreter lock, ``hang`` in
        code that does not, ``nan`` observes NaN.
    chance
        Of each step.
    once
        Whether only the first actor process of the run goes wrong.
    """

    def __init__(self, kind: str, chance: float = 1.0, once: bool = False, **staged: Any) -> None:
        super().__init__(**staged)
        self._kind, self._chance, self._once = kind, chance, once
        self._random = np.random.default_rng(int.from_bytes(os.urandom(8), "little"))

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        if process_name() == "actor" and self._steps > 5 and self._random.random() < self._chance:
            if self._once and (marks() / "went-wrong").exists():
                return observation, *rest
            mark("went-wrong", str(os.getpid()))
            if self._kind == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            elif self._kind == "hold":
                ctypes.PyDLL(None).sleep(int(HANG_SECONDS))
            elif self._kind == "hang":
                time.sleep(HANG_SECONDS)
            else:
                observation = np.full(4, np.nan, np.float32)
        return observation, *rest


gym.register("Staged-v0", StagedEnv, disable_env_checker=True)
gym.register("Faulty-v0", FaultyEnv, disable_env_checker=True)
gym.register("Forking-v0", StagedEnv, vector_entry_point=make_forking, disable_env_checker=True)

"""The bound: what an agent step costs when nothing surrounds environment and network.

One thread steps the environments with random actions, runs the network's forward pass on ready-made batches,
and takes optimizer steps on a ready-made batch of unrolls. Nothing travels, waits or is assembled. As in a
run, all cores are busy: one process each does the same, for cores share caches, memory and on many machines
their arithmetic. No run with the same environments, networks and sizes can take less CPU time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch

from seedflow.algos import ActingInput, Algorithm, UnrollLearning, make_algorithm
from seedflow.config import Config
from seedflow.envs import env_seed, make_group
from seedflow.envs.base import allocate_rows
from seedflow.errors import ConfigError
from seedflow.learner.memory import keep_freed_memory
from seedflow.learner.shared import recorded_fields
from seedflow.rollout import UnrollStorage
from seedflow.rollout.state_table import zeros
from seedflow.specs import EnvSpec


@dataclass(frozen=True)
class Bound:
    """CPU microseconds of one agent step, by part.

    Attributes
    ----------
    env
        Stepping and resetting environments, `actor.envs_per_group` by one call.
    inference
        The acting network on batches of the size asked for.
    training
        One optimizer step, divided by the transitions of its batch.
    """

    env: float
    inference: float
    training: float

    @property
    def total(self) -> float:
        return self.env + self.inference + self.training


def measure_bound(config: Config, spec: EnvSpec, batch: int, seconds: float) -> Bound:
    """Measure each part for `seconds`, on one thread of one process for each core; the mean of all.

    Parameters
    ----------
    config, spec
        The run's.
    batch
        Environments in one forward pass, as the run has them on average.
    seconds
        Duration of each of the three measurements.
    """
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        calls = [pool.submit(_measure, config, spec, batch, seconds) for _ in range(cores)]
        parts = np.mean([call.result() for call in calls], axis=0)
    return Bound(*parts.tolist())


def _measure(config: Config, spec: EnvSpec, batch: int, seconds: float) -> tuple[float, float, float]:
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a run
    return (
        _env(config, spec, seconds),
        _inference(config, spec, batch, seconds),
        _training(config, spec, seconds),
    )


def _env(config: Config, spec: EnvSpec, seconds: float) -> float:
    envs = config.actor.envs_per_group
    seeds = [env_seed(config.seed, "evaluate", i, 0) for i in range(envs)]
    rows = allocate_rows(spec, envs)
    generator = np.random.default_rng(config.seed)
    actions = generator.integers(0, spec.num_actions, (64, envs))
    steps = calls = 0

    def step() -> None:
        nonlocal steps, calls
        group.step(actions[calls % len(actions)], rows)
        calls += 1
        steps += envs - int(np.count_nonzero(rows["first"]))

    with make_group(config.env, envs, seeds) as group:
        group.reset(rows)
        step()
        steps = 0
        cpu = _cpu_of(step, seconds)
    return 1e6 * cpu / steps


def _inference(config: Config, spec: EnvSpec, batch: int, seconds: float) -> float:
    algorithm = make_algorithm(config, spec)
    device = algorithm.learning.parameters.parameter.device
    observation = tuple(zeros(leaf, (batch,), device) for leaf in spec.observation)
    inputs = ActingInput(
        observation, torch.zeros(batch, device=device), torch.zeros(batch, dtype=torch.bool, device=device)
    )
    state = tuple(zeros(s, (batch,), device) for s in algorithm.state_specs)
    calls = 0

    @torch.inference_mode()
    def act() -> None:
        nonlocal calls
        algorithm.acting.act(algorithm.learning.network, inputs, state)
        calls += 1

    act()
    calls = 0
    return 1e6 * _cpu_of(act, seconds) / (calls * batch)


def _training(config: Config, spec: EnvSpec, seconds: float) -> float:
    algorithm = make_algorithm(config, spec)
    learning = algorithm.learning
    if not isinstance(learning, UnrollLearning):
        raise ConfigError(f"algo.name = {config.algo.name!r} has no bound here; measure algo.name=vtrace")
    unrolls, unroll = config.train.batch, config.rollout.unroll
    batch = _storage(algorithm, config, spec).new_batch(unrolls)
    calls = 0

    def update() -> None:
        nonlocal calls
        learning.update(batch, config.train.learning_rate)
        calls += 1

    update()
    calls = 0
    return 1e6 * _cpu_of(update, seconds) / (calls * unrolls * unroll)


def _storage(algorithm: Algorithm, config: Config, spec: EnvSpec) -> UnrollStorage:
    device = algorithm.learning.parameters.parameter.device
    fields = recorded_fields(spec, algorithm.acting.record_specs)
    return UnrollStorage(fields, algorithm.state_specs, 1, config.rollout.unroll, device)


def _cpu_of(call: Callable[[], None], seconds: float) -> float:
    """CPU time that calling it over and over for `seconds` takes; all threads of the process count."""
    begin, end = time.process_time(), time.monotonic() + seconds
    while time.monotonic() < end:
        call()
    return time.process_time() - begin

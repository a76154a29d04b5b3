"""Measuring the learner on a GPU: inference alone, and all of it with actors whose environments cost nothing.

The network is the one of Mnih et al. 2015 on four stacked frames of 84 x 84; the environments show noise.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from seedflow.bench.transport import GROUPS, Workload, actor_process
from seedflow.config import Config, parse_config
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.learner.pulse import SIZE, Pulse
from seedflow.learner.shared import Unrolls
from seedflow.learner.threads import LoopThreads, serving_loop, training_loops
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.control import ControlServer
from seedflow.rpc.inline import InlineConnection, InlineTransport
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.specs import ArraySpec

BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
FRAME = ArraySpec("observation", (1, 84, 84), np.dtype(np.uint8))
NATURE = {"encoder": "nature", "frame_stack": {"depth": 4}}
GROUP = 256  # environments of a group at most, where inference is measured alone
WARM_UP = 10  # batches: kernels compile, the graph is captured
START_SECONDS = 60.0
JOIN_SECONDS = 30.0
LEAST_SECONDS = 5.0  # that one measurement takes

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """One way to run the learner: what is set beside the defaults."""

    name: str
    inference: Mapping[str, Any]
    network: Mapping[str, Any]


SETTINGS = (
    Setting("graphs", {}, {}),
    Setting("no graphs", {"cuda_graphs": False}, {}),
    Setting("graphs, bfloat16", {}, {"autocast": "bfloat16"}),
)


def measure_inference(
    remaining: Callable[[], float],
    device: str,
    batches: Sequence[int] = BATCHES,
    seconds: float = 0.7,
    network: Mapping[str, Any] = NATURE,
    frame: ArraySpec = FRAME,
) -> list[Row]:
    """Measure inference batches of several sizes, operation by operation and from CUDA graphs.

    A batch goes all the way: from the slab to the device, through the network, into states and unrolls, and
    its actions back into the slab. Nothing is trained.

    Parameters
    ----------
    remaining
        Seconds that are left.
    device
        Of the learner.
    batches
        Environments in a batch.
    seconds
        Of one measurement.
    network, frame
        The network's settings, and what an environment shows.

    Returns
    -------
    list of dict
        Microseconds a batch and agent steps a second, each without and with graphs, and how many times
        faster graphs are.
    """
    rows: list[Row] = []
    for batch in batches:
        row: dict[str, Any] = {"batch": batch}
        for name, graphs in (("eager", False), ("graph", True)):
            if remaining() < LEAST_SECONDS:
                row["note"] = "out of time"
                break
            config = parse_config(
                {
                    "device": device,
                    "actor": {"count": -(-batch // GROUP), "groups": 1, "envs_per_group": min(batch, GROUP)},
                    "inference": {"max_batch": batch, "cuda_graphs": graphs},
                    "rollout": {"queue": 2 * batch},
                    "network": network,
                    "train": {"batch": 2},
                }
            )
            reports: list[str] = []
            microseconds = _microseconds_of_a_batch(config, frame, seconds, reports)
            row[f"{name} us"] = microseconds
            row[f"{name} steps/s"] = batch / microseconds * 1e6
            for line in reports:
                if "CUDA graphs" in line or "pinned" in line:  # what it does without
                    row["note"] = line
        if "graph us" in row:
            row["faster"] = row["eager us"] / row["graph us"]
        rows.append(row)
    return rows


def _microseconds_of_a_batch(config: Config, frame: ArraySpec, seconds: float, reports: list[str]) -> float:
    spec = Workload("inference", frame, config.actor.envs_per_group).spec
    layout = BlockLayout(spec, 1, config.actor.envs_per_group)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab, TemporaryDirectory() as directory, ExitStack() as stack:
        transport = InlineTransport(layout, slab, table)
        stack.callback(transport.close)
        learner = Learner(config, spec, transport, Path(directory), reports.append)
        stack.callback(learner.close)
        actors = [
            transport.connect(Registration("train", i, 0, spec.fingerprint, 1, layout.envs))
            for i in range(config.actor.count)
        ]
        for actor in actors:
            actor.rows(0)["observation"][:] = np.random.default_rng(0).integers(0, 255, frame.shape)
            actor.rows(0)["first"][:] = True
        for _ in range(WARM_UP):
            _serve(learner, actors)
        spent, served, end = 0.0, 0, time.monotonic() + seconds
        while time.monotonic() < end:
            spent += _serve(learner, actors)
            served += 1
        return spent / served * 1e6


def _serve(learner: Learner, actors: Sequence[InlineConnection]) -> float:
    """Let all actors ask, and serve them in one batch; returns the seconds that serving took."""
    for actor in actors:
        actor.ring(0)
    began = time.perf_counter()
    learner.inference.step(0.0)
    spent = time.perf_counter() - began
    for actor in actors:
        assert actor.wait(0.0) == 0, "all actors are in one batch"
        actor.rows(0)["first"][:] = False
    experience = learner.shared.experience
    assert isinstance(experience, Unrolls)
    experience.freed.put(experience.finished.take(experience.finished.capacity))  # nobody trains on them
    return spent


def measure_learner(
    remaining: Callable[[], float],
    device: str,
    settings: Sequence[Setting] = SETTINGS,
    actors: int = 8,
    envs: int = 64,
    seconds: float = 6.0,
    network: Mapping[str, Any] = NATURE,
    frame: ArraySpec = FRAME,
) -> list[Row]:
    """Measure a learner that serves and trains, with actor processes that do nothing but copy an observation.

    Parameters
    ----------
    remaining, device, network, frame
        As of `measure_inference`.
    settings
        The ways to run it, one after the other.
    actors, envs
        Processes, and environments in each of their two groups.
    seconds
        Of one measurement.

    Returns
    -------
    list of dict
        Agent steps, updates and trained steps a second; environments in a batch, milliseconds to an answer
        and updates between acting and learning, on average.
    """
    rows: list[Row] = []
    for setting in settings:
        row: dict[str, Any] = {"learner": setting.name}
        if remaining() < LEAST_SECONDS + seconds:
            row["note"] = "out of time"
        else:
            config = parse_config(
                {
                    "device": device,
                    "actor": {"count": actors, "groups": GROUPS, "envs_per_group": envs},
                    "inference": {"max_batch": max(envs, actors * envs), **setting.inference},
                    "rollout": {"queue": 2 * actors * GROUPS * envs},
                    "network": {**network, **setting.network},
                    "train": {"batch": 32, "learning_rate": 1e-5, "total_agent_steps": 10**12},
                    "checkpoint": {"every_seconds": 1e6},
                }
            )
            row |= _rates(config, frame, seconds)
        rows.append(row)
    return rows


def _rates(config: Config, frame: ArraySpec, seconds: float) -> dict[str, Any]:
    with _running(config, frame) as learner:
        _await(lambda: learner.progress.updates >= WARM_UP, "trained")
        learner.measure()
        before, began = _counts(learner), time.monotonic()
        time.sleep(seconds)
        _await(lambda: bool((_counts(learner) > before).all()), "gone on")
        elapsed = time.monotonic() - began
        done = _counts(learner) - before
        measured = learner.measure()
    steps, trained, updates = (done / elapsed).tolist()
    return {
        "steps/s": steps,
        "trained/s": trained,
        "updates/s": updates,
        "batch": measured["inference/batch_size"],
        "answer ms": measured["inference/latency_ms"],
        "lag": measured.get("lag/policy_versions"),
    }


def _counts(learner: Learner) -> np.ndarray:
    progress = learner.progress
    return np.array([progress.agent_steps, progress.trained_steps, progress.updates], np.float64)


@contextmanager
def _running(config: Config, frame: ArraySpec) -> Iterator[Learner]:
    """A learner whose loops run as threads, with its actors' processes."""
    workload = Workload("learner", frame, config.actor.envs_per_group)
    layout = BlockLayout(workload.spec, GROUPS, workload.envs)
    token, table = secrets.token_hex(32), lease_table(config, workload.spec)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        slab = stack.enter_context(Slab(layout, table.blocks))
        control = stack.enter_context(ControlServer(layout, slab, table, token))
        learner = Learner(config, workload.spec, control, directory, lambda line: None)
        stack.callback(learner.close)
        threads = config.train.torch_threads or 1
        loops = [serving_loop(learner.serving, 1), *training_loops(learner.trainer, threads)]
        driver = LoopThreads(loops, lambda: False, learner.wake, Pulse(bytearray(SIZE)))
        endpoint = Endpoint(str(control.path), None)
        for index in range(config.actor.count):
            stack.enter_context(actor_process(workload, endpoint, token, "slab", index))
        driver.start()
        try:
            _await(lambda: control.counts().active == config.actor.count or driver.ended.is_set(), "started")
            yield learner
        finally:
            driver.stop()
            driver.join(JOIN_SECONDS)


def _await(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the benchmark's learner had not {what} within {START_SECONDS:g} s")
        time.sleep(0.01)

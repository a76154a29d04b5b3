"""What the transport costs: ``seedflow bench transport``.

The real parts with a null policy: an actor process with the real client and double buffering, the slab or
the gateway, the control server, the batcher, the copy out of the slab, and actions that are all zero. Small
observations (4 float32, 256 environments a group) show the cost of a message, frames (84x84 uint8, 32 a
group) that of the bytes. Beside it, what one thread's memcpy of the same bytes takes.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from seedflow.bench.measure import Figures, alternate, cpu_seconds, machine
from seedflow.errors import RunFailed
from seedflow.learner.batcher import Batcher
from seedflow.learner.staging import Staging
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.control import ControlServer
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.leases import LeaseTable
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.transport import GroupRang
from seedflow.specs import ArraySpec, EnvSpec

GROUPS = 2
START_SECONDS = 60.0


@dataclass(frozen=True)
class Workload:
    """What an environment shows, and how many a group holds."""

    name: str
    observation: ArraySpec
    envs: int

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec((self.observation,), num_actions=4)


WORKLOADS = (
    Workload("small", ArraySpec("observation", (4,), np.dtype(np.float32)), 256),
    Workload("frames", ArraySpec("observation", (84, 84), np.dtype(np.uint8)), 32),
)


class NullLearner:
    """The learner's side of the transport without a network: every action is 0.

    Parameters
    ----------
    workload
        What the actors show.
    actors
        How many there are.
    token
        The run token.
    """

    def __init__(self, workload: Workload, actors: int, token: str, stack: ExitStack) -> None:
        self.layout = BlockLayout(workload.spec, GROUPS, workload.envs)
        table = LeaseTable(
            train_blocks=actors,
            eval_blocks=0,
            spare_blocks=0,
            groups=GROUPS,
            envs=workload.envs,
            fingerprint=workload.spec.fingerprint,
            lease_seconds=30.0,
        )
        slab = stack.enter_context(Slab(self.layout, table.blocks))
        self.control = stack.enter_context(ControlServer(self.layout, slab, table, token))
        max_batch = actors * GROUPS * workload.envs
        self._batcher = Batcher(max_batch, 1, 0.0)
        self._staging = Staging(slab, max_batch, torch.device("cpu"))
        self._actions = torch.zeros(max_batch, dtype=torch.int64)
        self.steps = self.batches = 0

    def step(self) -> None:
        """Serve one batch of whatever has rung, as the inference loop does."""
        for event in self.control.poll(1.0):
            if isinstance(event, GroupRang):
                self._batcher.add(event.lease, event.group, time.monotonic())
        pending = self._batcher.take(time.monotonic(), lambda _: True)
        if not pending:
            return
        groups = [(p.lease.block, p.group, p.lease.envs) for p in pending]
        leases = {p.lease.id for p in pending}
        self.control.hold(leases)
        staged = self._staging.load(groups)
        size = len(staged.host["first"])
        self._staging.store_actions(groups, self._actions[:size].numpy())
        for p in pending:
            self.control.reply(p.lease.id, p.group)
        self.control.release(leases)
        self.steps += size
        self.batches += 1

    def serve(self, seconds: float) -> None:
        """Serve for some time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.step()


def measure(workload: Workload, path: str, actors: int, seconds: float) -> Figures:
    """Serve `actors` over one path for `seconds`, after a warm-up.

    Returns
    -------
    dict
        Agent steps per second; bytes of observations per second; CPU microseconds per step of the actors, the
        gateway and the learner, and their sum; environments per batch.
    """
    with ExitStack() as stack:
        token = secrets.token_hex(32)
        learner = NullLearner(workload, actors, token, stack)
        gateway = None
        if path == "grpc":
            gateway = stack.enter_context(
                GatewayProcess(
                    token,
                    str(learner.control.path),
                    "127.0.0.1",
                    None,
                    workload.spec,
                    groups=GROUPS,
                    envs=workload.envs,
                    lease_seconds=learner.control.table.lease_seconds,
                )
            )
            gateway.start()
        endpoint = Endpoint(str(learner.control.path), None if gateway is None else gateway.address)
        processes = [
            stack.enter_context(actor_process(workload, endpoint, token, path, index))
            for index in range(actors)
        ]
        _await_all(learner, processes)
        learner.serve(min(1.0, seconds))
        pids = {
            "actor": [process.pid for process in processes],
            "gateway": [gateway.pid] if gateway is not None and gateway.pid is not None else [],
            "learner": [os.getpid()],
        }
        before = {role: sum(map(cpu_seconds, of)) for role, of in pids.items()}
        steps, batches, begin = learner.steps, learner.batches, time.monotonic()
        learner.serve(seconds)
        elapsed = time.monotonic() - begin
        steps, batches = learner.steps - steps, learner.batches - batches
        cost = {role: 1e6 * (sum(map(cpu_seconds, of)) - before[role]) / steps for role, of in pids.items()}
    return {
        "steps_per_second": steps / elapsed,
        "bytes_per_second": steps * workload.observation.nbytes / elapsed,
        "actor_us_per_step": cost["actor"],
        "gateway_us_per_step": cost["gateway"],
        "learner_us_per_step": cost["learner"],
        "us_per_step": sum(cost.values()),
        "envs_per_batch": steps / batches,
    }


def measure_memcpy(workload: Workload, seconds: float) -> Figures:
    """Copy a group's observations from one array to another on one thread, over and over."""
    shape = (workload.envs, *workload.observation.shape)
    copies = max(2, 2**28 // (workload.envs * workload.observation.nbytes))  # beyond any cache
    source = np.ones((copies, *shape), workload.observation.dtype)
    target = np.zeros_like(source)
    np.copyto(target, source)
    done, cpu, begin = 0, time.thread_time(), time.monotonic()
    while time.monotonic() - begin < seconds:
        np.copyto(target[done % copies], source[done % copies])
        done += 1
    elapsed, cpu = time.monotonic() - begin, time.thread_time() - cpu
    steps = done * workload.envs
    return {
        "steps_per_second": steps / elapsed,
        "bytes_per_second": steps * workload.observation.nbytes / elapsed,
        "us_per_step": 1e6 * cpu / steps,
    }


def bench_transport(rounds: int = 5, seconds: float = 3.0, actors: int = 1) -> dict[str, Any]:
    """Measure every workload over both paths; returns a JSON-able report."""
    report: dict[str, Any] = {"machine": machine(), "actors": actors, "rounds": rounds, "seconds": seconds}
    for workload in WORKLOADS:
        variants = {path: partial(measure, workload, path, actors, seconds) for path in ("slab", "grpc")}
        variants["memcpy"] = partial(measure_memcpy, workload, min(1.0, seconds))
        medians = alternate(variants, rounds)
        for path in ("slab", "grpc"):
            medians[path]["share_of_memcpy"] = (
                medians[path]["bytes_per_second"] / medians["memcpy"]["bytes_per_second"]
            )
        report[workload.name] = {
            "observation": f"{workload.observation.dtype} {list(workload.observation.shape)}",
            "envs_per_group": workload.envs,
            **medians,
        }
    return report


@contextmanager
def actor_process(
    workload: Workload, endpoint: Endpoint, token: str, path: str, index: int
) -> Iterator[subprocess.Popen[bytes]]:
    """An actor whose environments cost one copy, see `seedflow.bench.transport_actor`."""
    start = {
        "endpoint": endpoint.to_json(),
        "token": token,
        "spec": workload.spec.to_json(),
        "groups": GROUPS,
        "envs": workload.envs,
        "index": index,
        "path": path,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "seedflow.bench.transport_actor"], stdin=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(start).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _await_all(learner: NullLearner, processes: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while learner.control.counts().active < len(processes):
        if any(process.poll() is not None for process in processes):
            raise RunFailed("an actor of the benchmark ended before it was registered; see its error above")
        if time.monotonic() > deadline:
            raise RunFailed(f"the benchmark's actors did not register within {START_SECONDS:g} s")
        learner.step()

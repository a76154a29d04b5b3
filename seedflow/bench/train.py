"""How much of the machine reaches environment and network: ``seedflow bench train``.

Each workload is an ordinary run, started by the command line in processes of its own. Once it has warmed up,
agent steps and the CPU time of every process are counted over a window and set against the *bound*
(`seedflow.bench.bound`), which is measured right after it, at the batch size that the run had.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedflow.bench.bound import measure_bound
from seedflow.bench.measure import Figures, alternate, cpu_seconds_by_process, machine
from seedflow.config import load_config
from seedflow.envs.probe import probe_spec
from seedflow.errors import RunFailed
from seedflow.metrics import METRICS_FILE

START_SECONDS = 180.0
STOP_SECONDS = 60.0
ROLES = {
    "seedflow.actor": "actors",
    "seedflow.learner": "learner",
    "seedflow.rpc.gateway": "gateway",
    "seedflow": "driver and scheduler",
    "distributed": "Dask workers",
}


@dataclass(frozen=True)
class Workload:
    """A configuration to run, and what to change of it."""

    name: str
    config: str
    overrides: tuple[str, ...] = ()


ENDLESS = ("train.total_agent_steps=1_000_000_000", "metrics.every_seconds=1", "metrics.tensorboard=false")
WORKLOADS = (
    Workload(
        "cartpole-64",
        "cartpole_vtrace",
        ("actor.envs_per_group=64", "rollout.unroll=20", "rollout.queue=64", "train.batch=32"),
    ),
    Workload(
        "cartpole-256",
        "cartpole_vtrace",
        (
            "actor.envs_per_group=256",
            "inference.max_batch=512",
            "rollout.unroll=20",
            "rollout.queue=128",
            "train.batch=64",
        ),
    ),
    Workload("synthetic", "synthetic_vtrace"),
    Workload("pong", "pong_vtrace", ("rpc.path=auto", "eval.every=0")),
)


def bench_train(
    rounds: int = 3, seconds: float = 10.0, names: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """Measure the workloads, by default all; returns a JSON-able report."""
    chosen = [w for w in WORKLOADS if names is None or w.name in names]
    medians = alternate({w.name: lambda w=w: measure(w, seconds) for w in chosen}, rounds)  # type: ignore[misc]
    return {"machine": machine(), "rounds": rounds, "seconds": seconds, **medians}


def measure(workload: Workload, seconds: float) -> Figures:
    """Run one workload for a window of `seconds`, then measure its bound.

    Returns
    -------
    dict
        Agent steps per second and per CPU-second of all processes; the bound's parts and the shares of it
        that the run reaches; CPU microseconds per step by process and by loop of the learner; idle cores.
    """
    config = load_config(workload.config, [*workload.overrides, *ENDLESS])
    with _running(workload, config.actor.count) as (process, metrics):
        before = metrics.next_record()
        cpu_before, begin = cpu_seconds_by_process(process.pid), time.monotonic()
        after = before
        while time.monotonic() - begin < seconds:
            after = metrics.next_record()
        cpu_after, elapsed = cpu_seconds_by_process(process.pid), time.monotonic() - begin
    steps = after["steps/agent"] - before["steps/agent"]
    used: Figures = dict.fromkeys(ROLES.values(), 0.0)
    for pid, (command, cpu) in cpu_after.items():
        used[_role(command)] += cpu - cpu_before.get(pid, ("", 0.0))[1]
    cost = {f"{role} us_per_step": 1e6 * cpu / steps for role, cpu in used.items()}
    for loop in ("inference", "prefetch", "training"):
        name = f"cpu/{loop}_seconds"
        if name in after:
            cost[f"{loop} loop us_per_step"] = 1e6 * (after[name] - before[name]) / steps
    total = sum(used.values())
    batch = max(1, round(after["inference/batch_size"]))
    bound = measure_bound(config, probe_spec(config.env), batch, min(2.0, seconds))
    cores = len(os.sched_getaffinity(0))
    return {
        "steps_per_second": steps / elapsed,
        "steps_per_cpu_second": steps / total,
        "updates_per_second": (after["train/updates"] - before["train/updates"]) / elapsed,
        "envs_per_batch": float(batch),
        "latency_ms_p50": after["inference/latency_ms_p50"],
        "latency_ms_p99": after["inference/latency_ms_p99"],
        "policy_lag": after.get("lag/policy_versions", 0.0),
        "us_per_step": 1e6 * total / steps,
        "bound env us_per_step": bound.env,
        "bound inference us_per_step": bound.inference,
        "bound training us_per_step": bound.training,
        "bound us_per_step": bound.total,
        "share_of_bound_cpu": bound.total * steps / (1e6 * total),
        "share_of_bound_wall": bound.total * steps / (1e6 * elapsed * cores),
        "idle_cores": cores - total / elapsed,
        **cost,
    }


class _MetricsFile:
    """The records of a running run, one at a time as they are written."""

    def __init__(self, path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
        self._path, self._process, self._log = path, process, log
        self._read = 0
        self._values: dict[str, float] = {}

    def next_record(self, timeout: float = START_SECONDS) -> dict[str, float]:
        """Wait for the next record; return the newest value of every metric so far."""
        deadline = time.monotonic() + timeout
        while True:
            lines = self._path.read_bytes().split(b"\n")[:-1] if self._path.exists() else []
            if len(lines) > self._read:
                for line in lines[self._read :]:
                    self._values |= json.loads(line)
                self._read = len(lines)
                return dict(self._values)
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RunFailed(
                    f"the benchmark's run wrote no metrics within {timeout:g} s; its last words were:\n"
                    + self._log.read_text(errors="replace")[-2000:]
                )
            time.sleep(0.005)

    def await_training(self, actors: int) -> None:
        """Wait until all actors are there and the rates have settled: a few seconds after the first updates.

        Raises
        ------
        RunFailed
            If that takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        record = self.next_record()
        while not record.get("train/updates") or record["lease/active"] < actors:
            record = self.next_record()
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"the benchmark's run has {record['lease/active']:g} of {actors} actors and "
                    f"{record.get('train/updates', 0):g} updates after {START_SECONDS:g} s"
                )
        begin = record["time/seconds"]
        while record["time/seconds"] < begin + 3.0 or "cpu/training_seconds" not in record:
            record = self.next_record()


@contextmanager
def _running(workload: Workload, actors: int) -> Iterator[tuple[subprocess.Popen[bytes], _MetricsFile]]:
    with tempfile.TemporaryDirectory(prefix="seedflow-bench-") as scratch:
        run_dir, log = Path(scratch) / "run", Path(scratch) / "log"
        command = [
            sys.executable,
            "-m",
            "seedflow.cli",
            "train",
            workload.config,
            *workload.overrides,
            *ENDLESS,
        ]
        with open(log, "wb") as output:
            process = subprocess.Popen([*command, "--run-dir", str(run_dir)], stdout=output, stderr=output)
        try:
            metrics = _MetricsFile(run_dir / METRICS_FILE, process, log)
            metrics.await_training(actors)
            yield process, metrics
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _role(command: str) -> str:
    for module, role in ROLES.items():
        if f"-m {module}" in command:
            return role
    return "Dask workers"  # processes that multiprocessing spawned: nannies' workers and their trackers

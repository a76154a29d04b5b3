"""Run R2D2 on Atari with the settings of SEED RL on whatever machine this is, and watch its memory.

    python -m benchmarks.atari_r2d2 --run-dir runs/atari_r2d2 [--steps 110_000] [--json]

``configs/atari_r2d2.yaml`` keeps 100,000 sequences of 120 frames and steps 640 environments. A few cores take
days to fill such a replay, so it is filled first with random play of `seedflow.bench.atari_frames`, encoded
as a run does, and saved as a checkpoint. The run begins with that (``--restore-replay``), steps real
environments, inserts their sequences and makes updates. Meanwhile the proportional set size of all processes
is read once a second: shared memory counts once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from seedflow.algos import make_algorithm
from seedflow.bench.atari_frames import Frames, play
from seedflow.bench.measure import machine
from seedflow.config import load_config
from seedflow.envs.probe import probe_spec
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.learner.shared import replay_spec
from seedflow.metrics import METRICS_FILE
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.specs import ArraySpec

CONFIG = "atari_r2d2"
LOOK_SECONDS = 1.0
Record = dict[str, float]


def fill(checkpoints: Path, distinct: int) -> dict[str, Any]:
    """Fill a replay of the configuration's capacity with frames of random play, and save it.

    Returns
    -------
    dict
        What was inserted, and the replay's size.
    """
    config = load_config(CONFIG)
    env = probe_spec(config.env)
    spec = replay_spec(config, env, make_algorithm(config, env))
    frames = play(distinct)
    began = time.monotonic()
    replay = Replay(spec, config.replay, config.seed, batch=config.train.batch)
    try:
        _insert(replay, spec, frames, config.replay.capacity)
        snapshot = replay.snapshot()
        snapshot.state["limiter"]["balance"] = 0.0  # nobody is to sample for what was inserted here
        CheckpointStore(checkpoints).save({}, {}, snapshot)
        return {
            "sequences": len(replay),
            "distinct_frames": frames.distinct,
            "stored_gb": sum(chunk.nbytes for chunk in snapshot.chunks) / 1e9,
            "seconds": time.monotonic() - began,
        }
    finally:
        replay.close()


def _insert(replay: Replay, spec: ReplaySpec, frames: Frames, capacity: int) -> None:
    """Chunks of all games by turns, over and over under new lanes, until the replay is full."""
    rng = np.random.default_rng(1)
    lanes, steps = frames.rows.shape[:2]
    scalars = {array.name: np.zeros((spec.rows, *array.shape), array.dtype) for array in spec.fields}
    turn = 0
    while True:
        for begin in range(0, steps - spec.rows + 1, spec.chunk):
            for row in range(lanes):
                lane = turn * lanes + row
                played = frames.rows[row, begin : begin + spec.rows]
                state = [_state(array, frames.rows[row], begin, rng) for array in spec.state]
                if replay.completes(lane):
                    replay.insert(lane, {**scalars, "observation": played}, state, float(rng.random()))
                    if len(replay) == capacity:
                        return
                else:
                    replay.insert(lane, {**scalars, "observation": played}, state)
        for row in range(lanes):
            replay.end_lane(turn * lanes + row)
        turn += 1


def _state(array: ArraySpec, row: NDArray[np.uint8], begin: int, rng: np.random.Generator) -> NDArray[Any]:
    """A core state at an index: the frames before it, numbers like those of an LSTM, or zeros."""
    if array.dtype == np.uint8:
        before = [row[max(0, begin - 1 - k)] for k in range(array.shape[0])]
        return np.stack(before)
    if array.dtype == np.float32:
        return rng.standard_normal(array.shape, np.float32)
    return np.zeros(array.shape, array.dtype)


def run(run_dir: Path, replay: Path, steps: int) -> dict[str, Any]:
    """Train for so many agent steps from a filled replay; returns what its metrics and memory were."""
    command = [sys.executable, "-m", "seedflow.cli", "train", CONFIG, f"train.total_agent_steps={steps}"]
    command += ["metrics.every_seconds=1", "--run-dir", str(run_dir), "--restore-replay", str(replay)]
    began, peak, parts = time.monotonic(), 0, {}
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            now = _memory(process.pid)
            if sum(now.values()) > peak:
                peak, parts = sum(now.values()), now
            time.sleep(LOOK_SECONDS)
    records = [json.loads(line) for line in (run_dir / METRICS_FILE).read_text().splitlines()]
    return {
        "exit_code": process.returncode,
        "seconds": time.monotonic() - began,
        "peak_memory_gb": peak / 1e9,
        "peak_by_role_gb": {name: size / 1e9 for name, size in parts.items()},
        **progress(records),
    }


def progress(records: Sequence[Record]) -> dict[str, float]:
    """Steps, updates before and after the first sequence of the run's own, and the ratio since then."""
    values: Record = {}
    history: list[Record] = []
    for record in records:
        values = values | record
        history.append(values)
    filled = next(record["replay/inserted"] for record in records if "replay/inserted" in record)
    own = next((h for h in history if h.get("replay/inserted", 0.0) > filled), history[-1])
    return {
        "agent_steps": values["steps/agent"],
        "steps_per_second": values["steps/agent"] / values["time/seconds"],
        "own_sequences": values["replay/inserted"] - filled,
        "updates_before_own_sequences": own.get("train/updates", 0.0),
        "updates_after": values.get("train/updates", 0.0) - own.get("train/updates", 0.0),
        "limiter_balance": values.get("replay/balance", float("nan")),
    }


def _memory(root: int) -> dict[str, int]:
    """Proportional set size of a process tree, bytes by role."""
    found: dict[str, int] = {}
    try:
        tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    except psutil.NoSuchProcess:
        return found
    for process in tree:
        try:
            command = " ".join(process.cmdline())
            size = process.memory_full_info().pss
        except psutil.Error:
            continue
        role = next((r for r in ("actor", "learner", "gateway") if f"seedflow.{r}" in command), "rest")
        found[role] = found.get(role, 0) + size
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill, run, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run-dir", type=Path, required=True, help="a new directory; must have 12 GB free")
    parser.add_argument("--steps", type=int, default=110_000, help="agent steps (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=200_000, help="distinct frames (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    filled = chosen.run_dir.with_name(chosen.run_dir.name + "-replay")
    # In a process of its own, whose memory is gone when the run begins.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        report: dict[str, Any] = {
            "machine": machine(),
            "fill": pool.submit(fill, filled, chosen.frames).result(),
        }
    try:
        report["run"] = run(chosen.run_dir, filled, chosen.steps)
    finally:
        shutil.rmtree(filled, ignore_errors=True)
    print(json.dumps(report, indent=None if chosen.json else 2))
    return int(report["run"]["exit_code"])


if __name__ == "__main__":
    sys.exit(main())

"""Does a run that is killed and resumed learn like one that was not, and what does its replay matter to that?

    python -m benchmarks.resume_curves --directory runs/resume -o docs/figures/resume.svg

Three seeds of ``cartpole_masked_r2d2`` run to their end. A fourth run is killed in the middle (SIGKILL, all
processes) and resumed twice from the same files: as it is, and with an empty replay in its checkpoint.
The evaluations of all of them are drawn, smoothed alike, over the band between the three. What is there
already of an earlier call is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from seedflow.checkpoints import open_store
from seedflow.config import load_config
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.metrics import METRICS_FILE, read_metrics
from seedflow.metrics.names import EVAL_RETURN
from seedflow.metrics.plot import STYLE, smooth
from seedflow.metrics.read import column
from seedflow.replay.disk.load import load_replay
from seedflow.replay.replay import Replay

CONFIG = "cartpole_masked_r2d2"
SETTINGS = ("eval.every=5_000", "eval.episodes=20", "eval.envs=4", "checkpoint.every_seconds=10")
SEEDS = (1, 2, 3)
KILLED_SEED = 4
LOOK_SECONDS = 0.5
WIDTH = 0.05
"""Of the smoothing, as a fraction of all steps."""


def train(run_dir: Path, *arguments: str, until: int | None = None) -> None:
    """Train to the end, or until so many agent steps and then kill every process of the run."""
    command = [sys.executable, "-m", "seedflow.cli", "train", *arguments, "--run-dir", str(run_dir)]
    with subprocess.Popen(command) as process:
        while process.poll() is None and (until is None or _steps(run_dir) < until):
            time.sleep(LOOK_SECONDS)
        if process.poll() is None:
            _kill(process.pid)
    if until is None and process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


def _steps(run_dir: Path) -> float:
    if not (run_dir / METRICS_FILE).exists():
        return 0.0
    steps, _ = column(read_metrics(run_dir), "steps/agent")
    return float(steps[-1]) if len(steps) else 0.0


def _kill(root: int) -> None:
    parent = psutil.Process(root)
    for process in [parent, *parent.children(recursive=True)]:
        if process.is_running():
            os.kill(process.pid, signal.SIGKILL)


def without_replay(run_dir: Path) -> None:
    """Put an empty replay in the place of that of a run's newest checkpoint; the older ones go."""
    config, store = load_config(run_dir), CheckpointStore(run_dir / "checkpoints")
    checkpoint = store.restore()
    spec = load_replay(open_store(run_dir / "checkpoints"), checkpoint.manifest).snapshot.spec
    replay = Replay(spec, config.replay, config.seed)
    shutil.rmtree(run_dir / "checkpoints")
    CheckpointStore(run_dir / "checkpoints").save(checkpoint.tensors, checkpoint.state, replay.snapshot())
    replay.close()


def run_all(directory: Path) -> dict[str, Path]:
    """Make the runs that are not there yet; returns their directories by name."""
    runs = {f"seed {seed}": directory / f"seed{seed}" for seed in SEEDS}
    for seed in SEEDS:
        if not runs[f"seed {seed}"].exists():
            train(runs[f"seed {seed}"], CONFIG, f"seed={seed}", *SETTINGS)
    killed = directory / "killed"
    if not killed.exists():
        total = load_config(CONFIG).train.total_agent_steps
        train(killed, CONFIG, f"seed={KILLED_SEED}", *SETTINGS, until=total // 2)
    for name, cut in (("killed and resumed", False), ("resumed without its replay", True)):
        runs[name] = directory / name.replace(" ", "_")
        if not runs[name].exists():
            shutil.copytree(killed, runs[name], ignore=shutil.ignore_patterns("writer.json", "*.lock"))
            if cut:
                without_replay(runs[name])
            train(runs[name], "--resume")
    return runs


def curve(run_dir: Path, grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return of the evaluations, smoothed, at the steps of `grid`."""
    steps, values = column(read_metrics(run_dir), EVAL_RETURN)
    return np.interp(grid, steps, smooth(steps, values, WIDTH * float(grid[-1])))


def compare(
    runs: dict[str, Path],
) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]], dict[str, dict[str, float]]]:
    """All curves on one grid, and how the resumed ones lie to the band between the others."""
    end = min(_steps(path) for path in runs.values())
    grid = np.linspace(end / 30, end, 117)
    curves = {name: curve(path, grid) for name, path in runs.items()}
    whole = np.stack([curves[f"seed {seed}"] for seed in SEEDS])
    low, high = whole.min(0), whole.max(0)
    after = grid > end / 2
    figures = {}
    for name in ("killed and resumed", "resumed without its replay"):
        below, above = (low - curves[name])[after], (curves[name] - high)[after]
        figures[name] = {
            "share_below": float((below > 0).mean()),
            "share_above": float((above > 0).mean()),
            "farthest_below": float(max(0.0, below.max())),
            "farthest_above": float(max(0.0, above.max())),
            "least": float(curves[name][after].min()),
            "mean_after": float(curves[name][after].mean()),
            "last": float(curves[name][-1]),
        }
    figures["band"] = {
        "mean_low_after": float(low[after].mean()),
        "mean_high_after": float(high[after].mean()),
    }
    return grid, curves, figures


def draw(grid: NDArray[np.float64], curves: dict[str, NDArray[np.float64]], output: Path) -> None:
    """The band and the two resumed runs."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    whole = np.stack([curves[f"seed {seed}"] for seed in SEEDS])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        axes.fill_between(grid, whole.min(0), whole.max(0), color="0.85", label="three uninterrupted seeds")
        for name, color in (("killed and resumed", "#0072B2"), ("resumed without its replay", "#D55E00")):
            axes.plot(grid, curves[name], color=color, label=name)
        axes.axvline(grid[-1] / 2, color="0.5", linestyle=":", linewidth=1)
        axes.set_xlabel("agent steps")
        axes.set_ylabel("return of evaluations")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.01)
        figure.legend(loc="outside upper left", ncols=3)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing, draw, and print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the figure")
    chosen = parser.parse_args(arguments)
    grid, curves, figures = compare(run_all(chosen.directory))
    draw(grid, curves, chosen.output)
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

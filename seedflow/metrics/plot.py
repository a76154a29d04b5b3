"""Learning curves of runs, drawn from their metrics files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from seedflow.metrics.names import EPISODE_RETURN, EVAL_RETURN, describe
from seedflow.metrics.read import MetricsError, column, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's colours, told apart by colour-blind readers too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")

EVALUATION: Any = {"linestyle": "", "marker": "o", "markersize": 5, "markeredgecolor": "white"}

STYLE: Any = {
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.edgecolor": "0.6",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "0.9",
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "seedflow",
}


def plot_runs(
    run_dirs: Sequence[str | Path],
    out_file: str | Path,
    metric: str = EPISODE_RETURN,
    smoothing: float = 0.03,
) -> Path:
    """Draw a metric of some runs over their agent steps into one figure.

    Each run is a line, smoothed over steps, with its raw values faint behind. Where returns are
    drawn, the returns of evaluations stand as dots in the run's colour.

    Parameters
    ----------
    run_dirs
        Run directories.
    out_file
        The figure; its ending decides on the format: png, svg or pdf.
    metric
        Name of the metric.
    smoothing
        Width of the smoothing, as a fraction of the run's steps; 0 draws the raw values only.

    Returns
    -------
    Path
        `out_file`.

    Raises
    ------
    MetricsError
        If matplotlib is not installed, the ending is unknown, or a run has no metrics to draw.
    """
    out_file = Path(out_file)
    if out_file.suffix.lower() not in FORMATS:
        raise MetricsError(
            f"cannot draw {str(out_file)!r}: expected a file that ends in {', '.join(FORMATS)}; "
            "rename the output"
        )
    if not run_dirs:
        raise MetricsError("no run to draw: expected at least one run directory")
    paths = [Path(run_dir) for run_dir in run_dirs]
    curves = [_curve(path, metric) for path in paths]
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ImportError as error:
        raise MetricsError(
            "drawing needs matplotlib, which is not installed: pip install 'seedflow[plot]'"
        ) from error

    # A Figure without pyplot has an Agg canvas: no display, no global state.
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        for i, (label, curve) in enumerate(zip(_labels(paths), curves, strict=True)):
            _draw(axes, curve, label, COLORS[i % len(COLORS)], smoothing)
        if any(len(evaluations[0]) for _, evaluations in curves):
            axes.plot([], [], color="0.4", label="evaluation", **EVALUATION)
        row = describe(metric)
        unit = f" [{row.unit}]" if row is not None and row.unit != "1" else ""
        axes.set_xlabel("agent steps")
        axes.set_ylabel(metric.replace("/", " ").replace("_", " ") + unit)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.margins(x=0.01)
        figure.legend(loc="outside upper left", ncols=4)
        out_file.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if out_file.suffix.lower() == ".svg" else None
        figure.savefig(out_file, metadata=metadata)
    return out_file


def smooth(steps: npt.NDArray[Any], values: npt.NDArray[Any], width: float) -> npt.NDArray[np.float64]:
    """Exponential moving average over unevenly spaced steps, without a bias towards the start.

    Parameters
    ----------
    steps, values : [n]
        Points of a curve, ordered by step.
    width
        Steps over which the weight of a point falls to 1/e.

    Examples
    --------
    >>> smooth(np.array([0, 10, 20]), np.array([4.0, 4.0, 4.0]), width=5.0)
    array([4., 4., 4.])
    """
    out = np.empty(len(values), np.float64)
    weighted = weight = 0.0
    for i, decay in enumerate(np.exp(-np.diff(steps, prepend=steps[:1]) / max(width, 1e-12))):
        weighted, weight = decay * weighted + float(values[i]), decay * weight + 1.0
        out[i] = weighted / weight
    return out


_Points = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def _curve(path: Path, metric: str) -> tuple[_Points, _Points]:
    """The points of the metric and those of evaluations that belong into the same axes."""
    records = read_metrics(path)
    points = column(records, metric)
    empty = (np.empty(0, np.int64), np.empty(0))
    evaluations = column(records, EVAL_RETURN) if metric == EPISODE_RETURN else empty
    if len(points[0]) + len(evaluations[0]) == 0:
        raise MetricsError(
            f"{path} has no value of {metric} yet ({len(records)} records); "
            "let the run go on until it has, or leave it out"
        )
    return points, evaluations


def _draw(axes: Axes, curve: tuple[_Points, _Points], label: str, color: str, smoothing: float) -> None:
    (steps, values), (eval_steps, eval_values) = curve
    if len(steps) > 2 and smoothing > 0:
        axes.plot(steps, values, color=color, alpha=0.2, linewidth=0.8)
        values = smooth(steps, values, smoothing * float(steps[-1] - steps[0]))
    # Drawn even if empty: a run with evaluations only has its place in the legend too.
    axes.plot(steps, values, color=color, linewidth=1.8, marker="o" if len(steps) == 1 else "", label=label)
    axes.plot(eval_steps, eval_values, color=color, **EVALUATION)


def _labels(paths: Sequence[Path]) -> list[str]:
    """Names of the runs: the last part of each path, or all of it where those are not distinct."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]

"""What a run measures, and where the numbers go.

`Metrics` counts in the loops, the sinks write snapshots, `read_metrics` and `plot_runs`
look at them afterwards, and `names` says what each number means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seedflow.metrics.read import METRICS_FILE, MetricsError, column, read_metrics
from seedflow.metrics.registry import Metrics, Rate
from seedflow.metrics.sinks import JsonlSink, Sink, TensorBoardSink

if TYPE_CHECKING:
    from seedflow.metrics.console import Console
    from seedflow.metrics.plot import plot_runs

__all__ = [
    "METRICS_FILE",
    "Console",
    "JsonlSink",
    "Metrics",
    "MetricsError",
    "Rate",
    "Sink",
    "TensorBoardSink",
    "column",
    "plot_runs",
    "read_metrics",
]


def __getattr__(name: str) -> Any:
    # rich takes a while to import, and most processes of a run print nothing.
    if name == "Console":
        from seedflow.metrics.console import Console

        return Console
    if name == "plot_runs":
        from seedflow.metrics.plot import plot_runs

        return plot_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

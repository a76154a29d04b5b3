"""A run of which nothing is left to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from seedflow.metrics import METRICS_FILE, read_metrics


@dataclass(frozen=True)
class PlainStatus:
    """How a run without roles is doing: its phase (``running`` or ``ended``) and its latest metrics."""

    phase: str
    metrics: dict[str, float]


class FinishedRun:
    """A run that had taken all its steps before; nothing was started.

    Parameters
    ----------
    directory
        Its directory.
    """

    def __init__(self, directory: Path) -> None:
        self.dir = directory

    def __repr__(self) -> str:
        return f"<FinishedRun in {self.dir}>"

    def status(self) -> PlainStatus:
        """The phase ``ended`` and the metrics of its last report."""
        records = read_metrics(self.dir) if (self.dir / METRICS_FILE).exists() else []
        return PlainStatus("ended", {k: v for k, v in records[-1].items() if "/" in k} if records else {})

    def wait(self, timeout: float | None = None) -> bool:
        """That it has ended."""
        return True

    def stop(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

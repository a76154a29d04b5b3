"""Reading the metrics of a run.

``metrics.jsonl`` holds one JSON object a line: ``step`` (agent steps), ``time`` (Unix seconds) and
the metrics by name; a value that was not finite is null. Lines with ``event`` carry no metrics: the
first one states the version of the format, and ``resumed`` says that the run went on from a
checkpoint at that step, so what had been recorded beyond it is superseded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seedflow.errors import SeedflowError

METRICS_FILE = "metrics.jsonl"
VERSION = 1

Record = dict[str, Any]


class MetricsError(SeedflowError):
    """Recorded metrics are missing or damaged, or cannot be shown."""


def read_metrics(path: str | Path) -> list[Record]:
    """Read the records of a run, in the order in which they were written.

    Parameters
    ----------
    path
        A metrics file, or the run directory that holds one.

    Returns
    -------
    list of dict
        ``step``, ``time`` and the metrics of one write each; null became NaN. Records that a resumed
        run superseded are left out, as is a last line that is still being written or was cut off.

    Raises
    ------
    MetricsError
        If there is no such file, a line before the last is damaged, or the format is a newer one.
    """
    path = metrics_file(path)
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise MetricsError(
            f"{path} does not exist: expected the metrics of a run; "
            "give a run directory, or wait until its learner has started"
        ) from error
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        record = parse_line(line)
        if record is None:
            raise MetricsError(
                f"{path}, line {number}: expected a JSON object with step and time, got {line[:60]!r}; "
                "remove the line"
            )
        _take(records, record, path)
    if (record := parse_line(last)) is not None:
        _take(records, record, path)
    return records


def column(records: Iterable[Mapping[str, Any]], name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """One metric of some records as arrays.

    Returns
    -------
    steps : int64[n]
        Agent steps of the records in which the metric is finite.
    values : float64[n]
        Its values.
    """
    pairs = [
        (record["step"], record[name]) for record in records if math.isfinite(record.get(name, math.nan))
    ]
    steps = np.array([step for step, _ in pairs], np.int64)
    return steps, np.array([value for _, value in pairs], np.float64)


def metrics_file(path: str | Path) -> Path:
    """The metrics file of a run directory; a path that is no directory is taken as the file."""
    path = Path(path)
    return path / METRICS_FILE if path.is_dir() else path


def parse_line(line: bytes) -> Record | None:
    """Decode one line, or return None where it is no whole record."""
    try:
        record = json.loads(line)
    except ValueError:  # JSONDecodeError, UnicodeDecodeError
        return None
    if not isinstance(record, dict) or not isinstance(record.get("step"), int) or "time" not in record:
        return None
    return {name: math.nan if value is None else value for name, value in record.items()}


def check_version(record: Mapping[str, Any], path: Path) -> None:
    """Refuse a file whose first record states a version that this release does not know."""
    version = record.get("version", VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise MetricsError(
            f"{path} has version {version} of the metrics format: this release of seedflow reads "
            f"up to {VERSION}; use a newer release"
        )


def _take(records: list[Record], record: Record, path: Path) -> None:
    """Append a record, or act upon an event."""
    if "event" not in record:
        records.append(record)
        return
    check_version(record, path)
    if record["event"] == "resumed":
        records[:] = [earlier for earlier in records if earlier["step"] <= record["step"]]

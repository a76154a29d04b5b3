"""Where the metrics of a run go: a file of JSON lines and TensorBoard's event files."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from seedflow.metrics.read import VERSION, check_version, parse_line

RESERVED = frozenset({"step", "time", "event", "version"})
"""Keys of a JSON line that no metric may have."""

_uid = itertools.count()


class Sink(ABC):
    """Takes the metrics of a run, one snapshot at a time.

    A sink is written by one thread. What was written is out of the process when `write` returns,
    so that a crash loses nothing. `close` may be called twice; a sink is also a context manager.
    """

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Record `values`, metrics by name, at `step` agent steps."""

    @abstractmethod
    def close(self) -> None:
        """Release what the sink holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JsonlSink(Sink):
    """Appends one JSON object a line; `seedflow.metrics.read` documents and reads the format.

    A file that is there already is continued. If a crash left its last line unfinished, that line is
    removed first.

    Parameters
    ----------
    path
        The file; its directory is made.
    resume_step
        Agent steps of the checkpoint from which the run goes on. Readers leave out what had been
        recorded beyond it. None if this is no resumed run.
    clock
        Unix time in seconds.

    Raises
    ------
    MetricsError
        If the file has a newer version of the format.
    """

    def __init__(
        self,
        path: str | Path,
        resume_step: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = Path(path)
        self._clock = clock
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # One write() a line, without a buffer: a crash can cut off the last line and nothing else.
        self._file = io.FileIO(self._path, "a+")
        try:
            self._end = _repair(self._file.fileno(), self._path)
            if self._end == 0:
                self._append({"step": resume_step or 0, "event": "started", "version": VERSION})
            elif resume_step is not None:
                self._append({"step": resume_step, "event": "resumed", "version": VERSION})
        except BaseException:
            self._file.close()
            raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line. A value that is not finite is written as null.

        Raises
        ------
        ValueError
            For a metric under a reserved name, or after `close`.
        OSError
            If the disk is full, say; the file then ends with the line before.
        """
        if clash := RESERVED.intersection(values):
            raise ValueError(f"metric {sorted(clash)[0]!r} has a reserved name: use group/quantity")
        self._append({"step": int(step)} | {name: _json_number(value) for name, value in values.items()})

    def close(self) -> None:
        self._file.close()

    def _append(self, record: Mapping[str, Any]) -> None:
        record = {"step": record["step"], "time": round(self._clock(), 3)} | dict(record)
        line = memoryview(json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        rest = line
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            os.truncate(self._file.fileno(), self._end)
            raise
        self._end += len(line)


class TensorBoardSink(Sink):
    """Writes scalars that TensorBoard shows, through TensorBoard's own record writer.

    TensorBoard's `EventFileWriter` opens files through TensorFlow where that is installed, and loads
    it for the purpose. Its `RecordWriter` underneath takes any file and needs neither TensorFlow nor
    torch, nor a thread.

    Parameters
    ----------
    directory
        Where to put a new event file; several files of one directory form one run.
    resume_step
        Agent steps of the checkpoint from which the run goes on: TensorBoard hides what earlier
        files say beyond it. None if this is no resumed run.
    """

    def __init__(self, directory: str | Path, resume_step: int | None = None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Callable[..., Any] = event_pb2.Event
        self._summary: Callable[..., Any] = summary_pb2.Summary
        self._scalar: Callable[..., Any] = summary_pb2.Summary.Value
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_uid)}"
        self._records = RecordWriter(io.BufferedWriter(io.FileIO(directory / name, "x")))
        self._append(file_version="brain.Event:2")
        if resume_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            # Events of this step and later are hidden; the one of the checkpoint itself stays.
            self._append(step=resume_step + 1, session_log=start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write one scalar per metric. TensorBoard marks values that are not finite."""
        scalars = [self._scalar(tag=name, simple_value=float(value)) for name, value in values.items()]
        self._append(step=int(step), summary=self._summary(value=scalars))

    def close(self) -> None:
        if not self._records.closed:
            self._records.close()

    def _append(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._records.flush()


def _json_number(value: float) -> float | None:
    """A number as JSON knows it: whole numbers stay whole, what is not finite becomes null."""
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return value if math.isfinite(value) else None


def _repair(fd: int, path: Path) -> int:
    """Make the file end with a whole line; return its length in bytes."""
    size = os.fstat(fd).st_size
    if size == 0:
        return 0
    content = path.read_bytes()
    first = content.partition(b"\n")[0]
    if (record := parse_line(first)) is not None:
        check_version(record, path)
    whole = content.rfind(b"\n") + 1
    if whole == size:
        return size
    if parse_line(content[whole:]) is not None:
        # Only the end of the line is missing.
        os.write(fd, b"\n")
        return size + 1
    os.truncate(fd, whole)
    return whole

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.metrics import JsonlSink, MetricsError, column, read_metrics
from seedflow.metrics.read import VERSION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def steps(path: Path) -> list[int]:
    return [record["step"] for record in read_metrics(path)]


def test_each_write_is_one_json_line_with_step_and_time(path: Path) -> None:
    with JsonlSink(path, clock=lambda: 1700000000.5) as sink:
        sink.write(64, {"episode/return": 12.5, "steps/agent": 64})
        lines = path.read_text().splitlines()  # on disk before the sink is closed
    assert json.loads(lines[-1]) == {
        "step": 64, "time": 1700000000.5, "episode/return": 12.5, "steps/agent": 64
    }  # fmt: skip
    assert json.loads(lines[0])["version"] == VERSION


def test_numbers_that_json_does_not_know_become_null_and_are_read_as_nan(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write(1, {"loss/total": math.nan, "loss/value": -math.inf, "loss/policy": 1e-30})
    line = json.loads(path.read_text().splitlines()[-1], parse_constant=pytest.fail)
    assert (line["loss/total"], line["loss/value"], line["loss/policy"]) == (None, None, 1e-30)
    (record,) = read_metrics(path)
    assert math.isnan(record["loss/total"])


def test_numpy_numbers_are_written_as_numbers(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write(np.int64(7), {"slots/free": np.int32(3), "loss/value": np.float32(0.5)})
    (record,) = read_metrics(path)
    assert (record["step"], record["slots/free"], record["loss/value"]) == (7, 3, 0.5)


def test_a_reopened_file_is_continued(path: Path) -> None:
    for step in (1, 2, 3):
        with JsonlSink(path) as sink:
            sink.write(step, {"steps/agent": step})
    assert steps(path) == [1, 2, 3]


def test_a_resumed_run_supersedes_what_lies_beyond_its_checkpoint(path: Path) -> None:
    with JsonlSink(path) as sink:
        for step in (10, 20, 30, 40):
            sink.write(step, {"episode/return": 1.0})
    with JsonlSink(path, resume_step=20) as sink:
        sink.write(25, {"episode/return": 2.0})
    at, values = column(read_metrics(path), "episode/return")
    assert at.tolist() == [10, 20, 25]
    assert values.tolist() == [1.0, 1.0, 2.0]


@given(cut=st.integers(0, 400))
def test_a_file_cut_anywhere_reads_as_its_whole_lines_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "metrics.jsonl"
    with JsonlSink(path) as sink:
        for step in range(5):
            sink.write(step, {"loss/total": step / 7, "episode/return": 10.0 * step})
    whole = path.read_bytes()
    os.truncate(path, min(cut, len(whole)))
    left = steps(path)
    assert left == list(range(len(left)))
    assert len(left) >= path.read_bytes().count(b"\n") - 1
    with JsonlSink(path) as sink:
        sink.write(100, {"episode/return": 1.0})
    assert steps(path) == [*left, 100]
    assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_a_last_line_of_zeros_after_a_power_cut_is_removed(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write(1, {})
    with path.open("ab") as file:
        file.write(b"\0" * 100)
    assert steps(path) == [1]
    with JsonlSink(path) as sink:
        sink.write(2, {})
    assert steps(path) == [1, 2]


def test_a_damaged_line_in_the_middle_is_named(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write(1, {})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "ti\n')
    with JsonlSink(path) as sink:
        sink.write(3, {})
    with pytest.raises(MetricsError, match=r"metrics\.jsonl, line 3: expected a JSON object"):
        read_metrics(path)


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = JsonlSink(path)
    sink.write(1, {"loss/total": 1.0})
    file = sink._file

    class FullDisk:
        def write(self, data: memoryview) -> int:
            if len(data) > 20:
                return file.write(data[:20])
            raise OSError(28, "No space left on device")

        def fileno(self) -> int:
            return file.fileno()

    monkeypatch.setattr(sink, "_file", FullDisk())
    with pytest.raises(OSError, match="No space left"):
        sink.write(2, {"loss/tot": 1.0})
    monkeypatch.undo()
    sink.write(3, {"loss/total": 1.0})
    sink.close()
    assert steps(path) == [1, 3]


def test_a_newer_format_is_refused_by_writer_and_reader(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(json.dumps({"step": 0, "time": 0, "event": "started", "version": VERSION + 1}) + "\n")
    for use in (JsonlSink, read_metrics):
        with pytest.raises(MetricsError, match=f"has version {VERSION + 1} of the metrics format"):
            use(path)


def test_a_metric_cannot_take_the_name_of_a_fixed_key(path: Path) -> None:
    with JsonlSink(path) as sink, pytest.raises(ValueError, match="'time' has a reserved name"):
        sink.write(1, {"time": 3.0})


def test_closing_twice_is_fine_and_writing_after_it_is_not(path: Path) -> None:
    sink = JsonlSink(path)
    sink.close()
    sink.close()
    with pytest.raises(ValueError, match="closed"):
        sink.write(1, {})


def test_a_run_directory_stands_for_its_file_and_a_missing_one_is_named(path: Path) -> None:
    with JsonlSink(path) as sink:
        sink.write(1, {})
    assert steps(path.parent) == [1]
    with pytest.raises(MetricsError, match="elsewhere does not exist"):
        read_metrics(path.parent / "elsewhere")


def test_a_column_skips_records_without_the_metric_and_those_that_are_not_finite() -> None:
    records = [
        {"step": 1, "episode/return": 2.0},
        {"step": 2},
        {"step": 3, "episode/return": math.nan},
        {"step": 4, "episode/return": 5},
    ]
    at, values = column(records, "episode/return")
    assert (at.tolist(), values.tolist()) == ([1, 4], [2.0, 5.0])
    assert [len(x) for x in column(records, "eval/return")] == [0, 0]

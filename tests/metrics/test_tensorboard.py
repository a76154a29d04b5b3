import math
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seedflow.metrics import TensorBoardSink


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(directory)).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_what_was_written_before_the_sink_is_closed(tmp_path: Path) -> None:
    with TensorBoardSink(tmp_path) as sink:
        sink.write(64, {"episode/return": 12.5, "slots/free": 3})
        sink.write(128, {"episode/return": 25.0})
        assert scalars(tmp_path, "episode/return") == [(64, 12.5), (128, 25.0)]
        assert scalars(tmp_path, "slots/free") == [(64, 3.0)]


def test_closing_twice_is_fine_and_all_is_in_the_file(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "new" / "directory")
    sink.write(1, {"loss/total": math.nan})
    sink.close()
    sink.close()
    ((step, value),) = scalars(tmp_path / "new" / "directory", "loss/total")
    assert step == 1
    assert math.isnan(value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_resumed_run_hides_what_lies_beyond_its_checkpoint(tmp_path: Path) -> None:
    with TensorBoardSink(tmp_path) as sink:
        for step in (10, 20, 30, 40):
            sink.write(step, {"episode/return": 1.0})
    with TensorBoardSink(tmp_path, resume_step=20) as sink:
        sink.write(25, {"episode/return": 2.0})
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path, "episode/return") == [(10, 1.0), (20, 1.0), (25, 2.0)]


PROGRAM = """
import sys
from seedflow.metrics import JsonlSink, Metrics, TensorBoardSink
with TensorBoardSink(sys.argv[1]) as sink:
    sink.write(1, {"loss/total": 1.0})
heavy = {"torch", "tensorflow", "numba", "dask", "distributed", "rich", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_neither_torch_nor_an_installed_tensorflow_is_loaded(tmp_path: Path) -> None:
    stand_in = tmp_path / "site"
    stand_in.mkdir()
    (stand_in / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')\n")
    program = f"import sys; sys.path.insert(0, {str(stand_in)!r})\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "events")],
        capture_output=True, text=True, timeout=100, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

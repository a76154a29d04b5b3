import sys
from pathlib import Path

import numpy as np
import pytest

from seedflow.metrics import JsonlSink, MetricsError
from seedflow.metrics.plot import plot_runs, smooth


def make_run(path: Path, seed: int, records: int = 60, evaluate: bool = False) -> Path:
    noise = np.random.default_rng(seed).normal(0, 15, records)
    with JsonlSink(path / "metrics.jsonl") as sink:
        for i in range(records):
            values = {"episode/return": 200 * (1 - np.exp(-i / 20)) + noise[i]}
            if evaluate and i % 20 == 10:
                values["eval/return"] = 205 * (1 - np.exp(-i / 20))
            sink.write(5000 * i, values)
    return path


@pytest.mark.parametrize(
    ("name", "magic"), [("out.png", b"\x89PNG"), ("out.svg", b"<?xml"), ("out.PDF", b"%PDF")]
)
def test_the_ending_decides_on_the_format(tmp_path: Path, name: str, magic: bytes) -> None:
    run = make_run(tmp_path / "run", 0)
    out = plot_runs([run], tmp_path / "figures" / name)
    assert out.read_bytes().startswith(magic)


def test_the_figure_names_runs_axes_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("seedflow.metrics.plot.STYLE", {"svg.fonttype": "none"})
    runs = [make_run(tmp_path / "alpha", 0, evaluate=True), make_run(tmp_path / "beta", 1)]
    text = plot_runs(runs, tmp_path / "out.svg").read_text()
    for expected in ("alpha", "evaluation", "beta", "agent steps", "episode return [reward]", "100k"):
        assert f">{expected}<" in text


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", 0)
    a, b = (plot_runs([run], tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert a == b


@pytest.mark.parametrize("records", [1, 2, 3])
def test_short_runs_are_drawn(tmp_path: Path, records: int) -> None:
    assert plot_runs([make_run(tmp_path / "run", 0, records)], tmp_path / "out.png").stat().st_size > 0


def test_runs_without_the_metric_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "empty", 0, records=0)
    with pytest.raises(MetricsError, match=r"empty has no value of episode/return yet \(0 records\)"):
        plot_runs([run], tmp_path / "out.png")


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match=r"out\.gif'.*\.png, \.svg"):
        plot_runs([tmp_path], tmp_path / "out.gif")


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetricsError, match="at least one run directory"):
        plot_runs([], tmp_path / "out.png")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", 0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MetricsError, match=r"pip install 'seedflow\[plot\]'"):
        plot_runs([run], tmp_path / "out.png")


def test_smoothing_weighs_points_by_their_distance_in_steps() -> None:
    steps, values = np.array([0, 10, 1000]), np.array([0.0, 1.0, 5.0])
    out = smooth(steps, values, width=10.0)
    assert out[0] == 0.0
    assert out[1] == pytest.approx(1 / (1 + np.exp(-1)))
    assert out[2] == pytest.approx(5.0)


def test_a_run_with_evaluations_only_is_drawn(tmp_path: Path) -> None:
    with JsonlSink(tmp_path / "run" / "metrics.jsonl") as sink:
        sink.write(100, {"eval/return": 5.0})
    assert plot_runs([tmp_path / "run"], tmp_path / "out.png").stat().st_size > 0

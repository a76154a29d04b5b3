"""The learner's part of the GPU benchmark, on the CPU and small."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks import gpu_learner
from benchmarks.gpu_learner import Setting, measure_inference, measure_learner
from seedflow.specs import ArraySpec

SMALL = ArraySpec("observation", (3,), np.dtype(np.float32))
MLP = {"encoder": "mlp", "hidden": [8]}


def test_inference_is_measured_at_each_size_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_learner, "GROUP", 4)
    rows = measure_inference(lambda: 100.0, "cpu", (2, 8), 0.05, MLP, SMALL)
    assert [row["batch"] for row in rows] == [2, 8]
    for row in rows:
        for way in ("eager", "graph"):
            assert row[f"{way} us"] > 0
            assert row[f"{way} steps/s"] == pytest.approx(row["batch"] / row[f"{way} us"] * 1e6)
        assert row["faster"] == pytest.approx(row["eager us"] / row["graph us"])
        assert "note" not in row


def test_sizes_that_there_is_no_time_for_are_left_out() -> None:
    left = itertools.chain([100.0], itertools.repeat(1.0))
    first, second = measure_inference(lambda: next(left), "cpu", (2, 4), 0.05, MLP, SMALL)
    assert first["eager us"] > 0
    assert first["note"] == second["note"] == "out of time"
    assert "graph us" not in first
    assert second.keys() == {"batch", "note"}


def test_the_whole_learner_is_measured_with_actors_of_its_own() -> None:
    settings = [Setting("plain", {}, {}), Setting("bfloat16", {}, {"autocast": "bfloat16"})]
    left = itertools.chain([100.0], itertools.repeat(1.0))
    row, late = measure_learner(lambda: next(left), "cpu", settings, 1, 4, 0.5, MLP, SMALL)
    assert row["learner"] == "plain"
    for rate in ("steps/s", "trained/s", "updates/s"):
        assert row[rate] > 0
    assert row["trained/s"] == pytest.approx(32 * 20 * row["updates/s"], rel=1e-6)
    assert 4 <= row["batch"] <= 8
    assert row["answer ms"] > 0
    assert late == {"learner": "bfloat16", "note": "out of time"}

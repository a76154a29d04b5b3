"""What the benchmarks of R2D2 make of the metrics of their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.atari_r2d2 import progress
from benchmarks.resume_curves import compare, without_replay
from seedflow.checkpoints import Generations, open_store
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.metrics import METRICS_FILE
from seedflow.replay.disk.load import load_replay
from seedflow.train import train
from tests.small_runs import small_r2d2


def test_updates_count_from_the_first_sequence_of_the_runs_own() -> None:
    """100 sequences were there before; values that did not change are not written again."""
    records: list[dict[str, float]] = [
        {"steps/agent": 0, "time/seconds": 1},
        {"steps/agent": 0, "time/seconds": 1, "replay/inserted": 100},
        {"steps/agent": 500, "time/seconds": 2, "train/updates": 3},
        {"steps/agent": 1000, "time/seconds": 3, "train/updates": 4, "replay/inserted": 102},
        {"steps/agent": 2000, "time/seconds": 4, "train/updates": 11, "replay/balance": -8.0},
    ]
    found = progress(records)
    assert (found["updates_before_own_sequences"], found["updates_after"]) == (4, 7)
    assert (found["own_sequences"], found["limiter_balance"]) == (2, -8.0)
    assert found["steps_per_second"] == 500


@pytest.mark.parametrize(
    ("level", "below", "above"), [(150.0, 0.0, 0.0), (90.0, 10.0, 0.0), (230.0, 0.0, 30.0)]
)
def test_a_resumed_run_is_set_against_the_band_between_the_others(
    tmp_path: Path, level: float, below: float, above: float
) -> None:
    def run(name: str, value: float) -> Path:
        lines = [
            {"step": step, "time": 0.0, "steps/agent": step, "eval/return": value}
            for step in range(0, 1001, 50)
        ]
        (tmp_path / name).mkdir()
        (tmp_path / name / METRICS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / name

    levels: dict[str, Any] = {"seed 1": 100.0, "seed 2": 130.0, "seed 3": 200.0}
    levels |= {"killed and resumed": level, "resumed without its replay": 100.0}
    _, curves, figures = compare({name: run(name, value) for name, value in levels.items()})
    found = figures["killed and resumed"]
    assert (found["farthest_below"], found["farthest_above"]) == pytest.approx((below, above))
    assert (found["share_below"], found["share_above"]) == (below > 0, above > 0)
    assert found["least"] == pytest.approx(level)
    np.testing.assert_allclose(curves["seed 3"], 200.0)


def test_an_empty_replay_takes_the_place_of_a_full_one(tmp_path: Path) -> None:
    config = small_r2d2()
    train(config, run_dir=tmp_path)
    before = CheckpointStore(tmp_path / "checkpoints").load()
    without_replay(tmp_path)
    after = CheckpointStore(tmp_path / "checkpoints").load()
    assert after.state == before.state
    store = open_store(tmp_path / "checkpoints")
    assert not len(load_replay(store, Generations(store).restore(lambda m: None).manifest).snapshot.sequences)
    more = {"total_agent_steps": config.train.total_agent_steps + 200}
    train(small_r2d2(train=more), run_dir=tmp_path, resume=True)

"""Going on with a run."""

from __future__ import annotations

import pytest

from tests.runs.rig import Launcher, metrics, progress, steps


@pytest.mark.parametrize("runtime", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_from_its_counters(launch: Launcher, runtime: str) -> None:
    run_dir = launch.directory / "run"
    settings = ["train.learning_rate=0.01", "train.learning_rate_decay=linear", f"runtime={runtime}"]
    first = launch.train("train.total_agent_steps=600", *settings)
    assert first.end() == 0, first.err
    saved, reported = progress(run_dir), metrics(run_dir)
    # The last record may come right after another one, without an update between them.
    assert [r["loss/learning_rate"] for r in reported if "loss/learning_rate" in r][-1] < 0.009

    refused = launch.train("train.total_agent_steps=600")
    assert refused.end() == 2
    assert f"run_dir = {run_dir} holds a run already; go on with it by --resume" in refused.err

    second = launch.train("train.total_agent_steps=1200", resume=True)
    assert second.end() == 0, second.err
    records = metrics(run_dir)
    assert records[: len(reported)] == reported
    added = records[len(reported) :]
    for name in ("steps/agent", "steps/env_frames", "train/updates", "steps/trained", "time/seconds"):
        values = [record[name] for record in records]
        assert values == sorted(values), name
    assert added[0]["train/updates"] >= saved["updates"] > 0
    assert added[-1]["steps/agent"] >= 1200
    # Linear in the steps of both parts: half of it is left when the second one begins. A record holds the
    # mean since the record before, which may be that of the whole part.
    rates = [record["loss/learning_rate"] for record in added if "loss/learning_rate" in record]
    assert 0 < rates[0] <= 0.0051
    assert rates == sorted(rates, reverse=True)
    assert progress(run_dir)["updates"] > saved["updates"]


def test_a_run_that_has_taken_all_its_steps_ends_at_once(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    assert launch.train("runtime=inline").end() == 0
    before = steps(run_dir)
    again = launch.train("runtime=local", resume=True)
    assert again.end() == 0, again.err
    assert (
        f"run is already finished, {before:,.0f} of 1,000 steps; raise train.total_agent_steps" in again.out
    )
    assert again.family() == []
    assert steps(run_dir) == before


def test_resume_or_start_does_either(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    for total in (300, 600):
        arguments = ["--resume-or-start", "runtime=inline", f"train.total_agent_steps={total}"]
        launched = launch.train(*arguments)
        assert launched.end() == 0, launched.err
        assert total <= progress(run_dir)["agent_steps"] < total + 100
    assert "resumed generation 1: 3" in launched.out


def test_nothing_to_resume_is_bad_usage(launch: Launcher) -> None:
    (launch.directory / "run").mkdir()
    launched = launch.train(resume=True)
    assert launched.end() == 2
    assert "run" in launched.err
    launched.check_quiet()

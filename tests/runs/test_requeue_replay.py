"""A run with a replay in a batch queue: told to stop at any moment, it saves all and goes on from there."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from seedflow.checkpoints import Generations, open_store
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.replay.disk.load import load_replay
from seedflow.replay.snapshot import Snapshot
from tests.runs.rig import (
    ENDLESS,
    PROMISED_SECONDS,
    TINY,
    Launched,
    Launcher,
    manifests,
    metrics,
    progress,
    steps,
)
from tests.small_runs import small_r2d2

REQUEUE = "train.requeue_exit=true"
LARGE = "network.hidden=[2000, 2000]"
"""Saving it takes a while."""


@pytest.fixture
def queued(launch: Launcher) -> Callable[..., Launched]:
    """Starts the run as a batch script does, first and every other time."""
    small = small_r2d2(env=TINY["env"], metrics={"console": "plain", "every_seconds": 0.2})
    launch.config.write_text(json.dumps(small.model_dump(mode="json")))
    return lambda *settings: launch.train("--resume-or-start", REQUEUE, "runtime=local", *settings)


def saved_replay(run_dir: Path) -> Snapshot:
    """The replay of the newest generation, every byte of it checked."""
    store = open_store(run_dir / "checkpoints")
    manifest = Generations(store).restore(lambda manifest: None).manifest
    return load_replay(store, manifest).snapshot


def is_writing(run_dir: Path) -> bool:
    tensors = run_dir / "checkpoints" / "tensors"
    return len(manifests(run_dir)) > 1 and bool(list(tensors.glob(".*")))


def is_evaluating(run_dir: Path) -> bool:
    return steps(run_dir) > 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "settings"),
    [
        pytest.param(steps, ["replay.capacity=5000", "replay.min_size=4000"], id="warm-up"),
        pytest.param(is_evaluating, ["eval.every=100", "eval.episodes=100000"], id="evaluation"),
        pytest.param(is_writing, [LARGE, "checkpoint.every_seconds=0.1"], id="checkpoint"),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_at_any_moment_saves_what_a_requeued_run_goes_on_with(
    launch: Launcher,
    queued: Callable[..., Launched],
    moment: Callable[[Path], bool],
    settings: list[str],
    times: int,
) -> None:
    run_dir = launch.directory / "run"
    first = queued(ENDLESS, *settings)
    first.until(lambda: moment(run_dir), "the moment")
    for _ in range(times):
        first.send(signal.SIGTERM)
    # A second signal does not wait: it may come before anything was saved.
    assert first.wait() in ([75] if times == 1 else [75, 128 + signal.SIGTERM]), first.err
    first.check_gone(PROMISED_SECONDS)
    if times == 2 and not manifests(run_dir):
        return
    CheckpointStore(run_dir / "checkpoints").load()
    saved, replay = progress(run_dir), saved_replay(run_dir)
    second = queued(*settings, f"train.total_agent_steps={int(saved['agent_steps']) + 200}")
    assert second.end() == 0, second.err
    assert f": {saved['agent_steps']} agent steps" in second.out
    grown = saved_replay(run_dir)
    assert grown.state["next_sequence"] >= replay.state["next_sequence"]
    assert progress(run_dir)["agent_steps"] >= saved["agent_steps"] + 200


@pytest.mark.slow
def test_a_grace_too_short_to_save_leaves_the_generation_before(
    launch: Launcher, queued: Callable[..., Launched]
) -> None:
    run_dir = launch.directory / "run"
    settings = [LARGE, "cluster.stop_seconds=0.01", "checkpoint.every_seconds=0.1"]
    first = queued(ENDLESS, *settings)
    first.until(lambda: is_writing(run_dir), "a checkpoint in the making")
    first.send(signal.SIGTERM)
    assert first.wait() == 75, first.err
    first.check_gone(PROMISED_SECONDS)
    saved = progress(run_dir)["agent_steps"]
    assert saved_replay(run_dir).state["next_sequence"] > 0
    second = queued(LARGE, f"train.total_agent_steps={int(saved) + 100}")
    assert second.end() == 0, second.err


@pytest.mark.slow
def test_samples_per_insert_of_a_resumed_run_go_on_without_a_burst(
    launch: Launcher, queued: Callable[..., Launched]
) -> None:
    """What was inserted and sampled before counts, so that nothing is made up for."""
    run_dir = launch.directory / "run"
    for total in (1500, 3000):
        done = queued(f"train.total_agent_steps={total}", "replay.tolerance=40")
        assert done.end() == 0, done.err
    records = [record for record in metrics(run_dir) if record.get("replay/inserted", 0) > 60]
    for record in records:
        due = 4.0 * (record["replay/inserted"] - 10)
        assert record["replay/sampled"] == pytest.approx(due, abs=40 + 4 * 4)
    assert progress(run_dir)["agent_steps"] >= 3000

"""A run from its start to its end: what it leaves, and what it does not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seedflow.config import load_config
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.metrics.names import describe
from tests.runs.rig import ENDLESS, PROMISED_SECONDS, Launched, Launcher, metrics, progress, staged, steps

HEAVY = ("torch", "numba", "llvmlite", "dask", "distributed")


def check_light(launched: Launched) -> None:
    """No actor, no gateway and no probe has loaded what only the learner or Dask needs."""
    for module in ("seedflow.actor", "seedflow.rpc.gateway"):
        for pid in launched.family(module):
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert not [name for name in ("libtorch", "llvmlite", "numba") if name in maps]
    for point in ("probe-init", "actor-init", "actor-step5"):
        loaded = {name.partition(".")[0] for name in (launched.marks / point).read_text().split()}
        assert "numpy" in loaded
        assert not loaded & set(HEAVY)


def test_a_run_takes_its_steps_and_leaves_files_and_no_process(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    whole = ["rpc.path=auto", "metrics.tensorboard=true", "actor.count=2"]
    launched = launch.train(*staged(hang="actor-step5"), *whole)
    launched.until(lambda: launched.marked("actor-step5"), "the first steps")
    launched.until(lambda: len(launched.family("seedflow.actor")) == 2, "both actors")
    assert len(launched.family("seedflow.rpc.gateway")) == 1
    check_light(launched)
    launched.mark("go")
    assert launched.end() == 0, launched.err
    launched.check_quiet()

    config = load_config(run_dir)
    assert config.train.total_agent_steps == 1000
    records = metrics(run_dir)
    assert records[-1]["steps/agent"] >= 1000
    assert {record["episode/return"] for record in records if "episode/return" in record} == {10.0}
    assert records[-1]["actor/restarts"] == 0
    unknown = {name for record in records for name in record if "/" in name and describe(name) is None}
    assert not unknown
    newest = CheckpointStore(run_dir / "checkpoints").load()
    assert newest.state["progress"]["agent_steps"] == records[-1]["steps/agent"]
    events = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    assert events.Scalars("steps/agent")[-1].value == records[-1]["steps/agent"]
    logs = {path.name: path.read_text() for path in (run_dir / "logs").iterdir()}
    assert set(logs) == {"learner-0-g0.log", "training.log", "actor-0-g0.log", "actor-1-g0.log"}
    assert "OMP_NUM_THREADS=1" in logs["actor-0-g0.log"]
    assert "100%" in launched.out
    first, *_, last = launched.out.splitlines()
    assert first == "Run directory: run"
    taken = int(newest.state["progress"]["agent_steps"])
    assert last == (
        f"Finished {taken:,} steps, mean return 10 of the last episodes, saved as checkpoint "
        f"{newest.generation} in run/checkpoints; evaluate: seedflow eval run"
    )


@pytest.mark.slow
def test_a_run_over_grpc_reports_its_evaluations(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    evaluated = ["eval.every=300", "eval.episodes=4", "eval.envs=2"]
    launched = launch.train("rpc.path=grpc", *evaluated, ENDLESS)
    launched.until(lambda: sum("eval/return" in record for record in metrics(run_dir)) > 1, "evaluations")
    launched.send(signal.SIGTERM)
    assert launched.end() == 143
    launched.check_quiet()
    for role in ("actor", "eval"):
        assert "over GrpcConnection, encrypted" in (run_dir / "logs" / f"{role}-0-g0.log").read_text()


@pytest.mark.slow
def test_a_run_in_one_process_leaves_the_same_files(launch: Launcher) -> None:
    run_dir = launch.directory / "run"
    launched = launch.train("runtime=inline", "metrics.tensorboard=true")
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert steps(run_dir) >= 1000
    assert progress(run_dir)["agent_steps"] == steps(run_dir)
    assert {path.name for path in run_dir.iterdir()} == {
        ".lock",
        "config.yaml",
        "run.json",
        "metrics.jsonl",
        "tensorboard",
        "checkpoints",
    }


@pytest.mark.slow
def test_environments_in_processes_of_their_own_end_with_the_run(launch: Launcher) -> None:
    launched = launch.train("env.id=run_envs:Forking-v0", "env.kwargs={}")
    assert launched.end(PROMISED_SECONDS * 10) == 0, launched.err
    assert launched.marked("actor-forks")

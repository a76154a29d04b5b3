"""The programs in examples/ run, with small numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import seedflow
from tests.replay.disk.ring import SPEC, Ring, saved, values

pytestmark = pytest.mark.timeout(600)  # programs of several processes, on machines that may be busy

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run_example(name: str, *arguments: str, seconds: float = 500.0) -> str:
    """What an example prints; it must end with code 0."""
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def mean_return(printed: str) -> float:
    """The number behind "mean return over 100 episodes" in the last line."""
    return float(printed.splitlines()[-1].removeprefix("mean return over 100 episodes: "))


def test_every_example_is_run_here() -> None:
    tests = Path(__file__).parent
    source = "".join(
        path.read_text() for path in (tests / "test_examples.py", tests / "hosts" / "test_mpi.py")
    )
    for path in EXAMPLES.glob("*.py"):
        assert f'"{path.name}"' in source, path.name


def test_an_environment_of_ones_own_is_trained_on_and_played(tmp_path: Path) -> None:
    printed = run_example("own_environment.py", "--steps", "3000", "--run-dir", str(tmp_path / "run"))
    assert -1.0 <= mean_return(printed) <= 1.0
    assert (tmp_path / "run" / "config.yaml").is_file()


@pytest.mark.slow
def test_it_learns_to_catch_the_ball(tmp_path: Path) -> None:
    printed = run_example("own_environment.py", "--run-dir", str(tmp_path / "run"))
    assert mean_return(printed) > 0.8


@pytest.mark.slow
def test_an_environment_of_ones_own_reaches_actor_processes(tmp_path: Path) -> None:
    arguments = ["--runtime", "local", "--steps", "3000", "--run-dir", str(tmp_path / "run")]
    printed = run_example("own_environment.py", *arguments)
    assert -1.0 <= mean_return(printed) <= 1.0
    assert "train actor 0 (generation 0) joined" in printed


def test_the_policy_of_a_run_is_used_without_the_rest(tmp_path: Path) -> None:
    config = seedflow.load_config(
        "cartpole_vtrace",
        {
            "runtime": "inline",
            "train.total_agent_steps": 1000,
            "metrics.console": "off",
            "metrics.tensorboard": False,
        },
    )
    seedflow.train(config, run_dir=tmp_path / "run")
    printed = run_example("policy.py", str(tmp_path / "run"), "--episodes", "2")
    first, *episodes = printed.splitlines()
    assert first == f"checkpoint 1 of {tmp_path / 'run'} on CartPole-v1"
    assert [line.split(":")[0] for line in episodes] == ["episode 0", "episode 1"]
    assert all(float(line.split()[-1]) >= 1.0 for line in episodes)


@pytest.mark.slow
def test_a_client_of_a_dask_cluster_is_enough(tmp_path: Path) -> None:
    printed = run_example("dask_client.py", "--steps", "3000", "--run-dir", str(tmp_path / "run"))
    assert "learner-0 is running on tcp://" in printed
    assert "45 is what the client computed after the run" in printed
    assert printed.splitlines()[-1].endswith("over 10 episodes")


def test_statistics_of_a_replay_are_computed_on_a_cluster(tmp_path: Path) -> None:
    snapshot = Ring(capacity=100).arrive(400).snapshot()
    saved(tmp_path / "checkpoints", snapshot)
    printed = run_example("replay_statistics.py", str(tmp_path)).splitlines()
    found = {name: float(value) for name, value in (line.rsplit(": ", 1) for line in printed[1:])}
    fields = {
        array.name: np.concatenate(
            [values(SPEC, chunk.lane, chunk.position)[number][: SPEC.chunk] for chunk in snapshot.chunks]
        )
        for number, array in enumerate(SPEC.fields)
    }
    assert found["indices"] == len(snapshot.chunks) * SPEC.chunk
    assert found["episodes begun"] == fields["first"].sum()
    assert found["reward, mean"] == pytest.approx(fields["reward"].mean(), rel=1e-5)
    image = fields["observation/image"]
    assert found["observation/image, standard deviation"] == pytest.approx(image.std(), rel=1e-5)

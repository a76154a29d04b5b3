"""What is found to be wrong before anything starts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from seedflow import preflight
from seedflow.config import parse_config
from seedflow.errors import ConfigError
from seedflow.learner.footprint import experience_bytes
from seedflow.preflight import check_learner
from seedflow.specs import ArraySpec, EnvSpec

FLAT = EnvSpec((ArraySpec("observation", (4,), np.dtype(np.float32)),), num_actions=2)


@pytest.mark.parametrize("runtime", ["inline", "local", "cluster"])
def test_an_encoder_that_cannot_take_the_observation(runtime: str) -> None:
    config = parse_config({"runtime": runtime, "network": {"encoder": "nature"}})
    with pytest.raises(ConfigError, match=r"network.encoder = 'nature' needs exactly one image leaf"):
        check_learner(config, FLAT)


HUGE = {"rollout": {"unroll": 1_000_000}, "train": {"batch": 100_000}, "device": "cpu"}


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_unrolls_that_cannot_fit_into_memory(runtime: str) -> None:
    message = r"rollout.unroll = 1000000, train.batch = 100000 .* need at least [\d.e+]+ GiB .* has .* GiB"
    with pytest.raises(ConfigError, match=message):
        check_learner(parse_config({**HUGE, "runtime": runtime}), FLAT)


def test_the_memory_of_a_cluster_is_not_this_machines() -> None:
    check_learner(parse_config({**HUGE, "runtime": "cluster"}), FLAT)


def test_the_bytes_are_those_of_slots_and_batches() -> None:
    config = parse_config(
        {
            "actor": {"count": 1, "groups": 1, "envs_per_group": 2},
            "rollout": {"unroll": 9, "queue": 1, "prefetch": 1},
            "train": {"batch": 3},
        }
    )
    index = 4 * 4 + 4 + 3 + 8  # observation, reward, flags, action
    assert experience_bytes(config, FLAT) == (config.slots + 2 * 3) * 10 * index


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=r"device = 'cuda', but torch sees no CUDA device on this host"):
        check_learner(parse_config({"device": "cuda"}), FLAT)
    check_learner(parse_config({"device": "cuda", "runtime": "cluster"}), FLAT)
    assert not torch.cuda.is_initialized()


PROGRAM = """
import seedflow
{body}
"""
TRAIN = 'seedflow.train("cartpole_vtrace", run_dir="run")'


def run(program: str, tmp_path: Path, way: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "own.py"
    path.write_text(program)
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "__init__.py").touch()
    (tmp_path / "own_package" / "script.py").write_text(program)
    command = {
        "script": [sys.executable, "own.py"],
        "module": [sys.executable, "-m", "own_package.script"],
        "stdin": [sys.executable, "-"],
    }[way]
    text = program if way == "stdin" else None
    return subprocess.run(
        command, cwd=tmp_path, input=text, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize("way", ["script", "module"])
def test_a_script_without_a_guard_is_refused_with_one_message(tmp_path: Path, way: str) -> None:
    body = f"name = __name__\nfor _ in range(1):\n    {TRAIN}\nif __name__ == '__main__':\n    print(name)"
    done = run(PROGRAM.format(body=body), tmp_path, way)
    assert done.returncode == 1
    assert re.search(r"(own|script).py, line 5, starts a run without a guard", done.stderr)
    assert '\n    if __name__ == "__main__":\n        main()\n' in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert len(done.stderr.splitlines()) < 25
    assert not (tmp_path / "run").exists()


def test_a_program_on_standard_input_is_told_to_become_a_file(tmp_path: Path) -> None:
    body = f'if __name__ == "__main__":\n    {TRAIN}'
    done = run(PROGRAM.format(body=body), tmp_path, "stdin")
    assert done.returncode == 1
    assert "the main program is <stdin>, which is no file" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert not (tmp_path / "run").exists()


RESPAWNED = """
import multiprocessing

import seedflow

if multiprocessing.current_process().name == "MainProcess":
    where = "run"
else:
    where = "second"
config = {"runtime": "inline", "train": {"total_agent_steps": 50}, "metrics": {"console": "off"}}
seedflow.train(config, run_dir=where)
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    print("code", child.exitcode)
"""


@pytest.mark.timeout(300)
def test_a_process_that_runs_the_script_again_starts_no_second_run(tmp_path: Path) -> None:
    """Where a missing guard cannot be seen, a spawned process notices that it imports the main program."""
    done = run(RESPAWNED, tmp_path, "script")
    assert done.returncode == 0, done.stderr
    assert "code 1" in done.stdout
    assert "would start the run again" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "run").exists()
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("train()", False),
        ("log(__name__)\ntrain()", False),
        ("train()\nif __name__ == '__main__':\n    pass", False),
        ("if __name__ == '__main__':\n    train()", True),
        ("main = '__main__' == __name__\nif main:\n    train()", True),
        ("import multiprocessing\nif multiprocessing.parent_process() is None:\n    train()", True),
        ("from multiprocessing import current_process\ntrain()", True),
    ],
)
def test_what_counts_as_a_guard(source: str, guarded: bool) -> None:
    line = 1 + source[: source.index("train()")].count("\n")
    assert preflight._is_guarded(source, line) == guarded


def test_a_program_that_has_a_guard_is_left_alone() -> None:
    """Pytest's has one."""
    preflight.check_script(parse_config({"runtime": "local"}))


def test_chunk_buffers_and_batches_that_do_not_fit_the_machine_are_refused() -> None:
    """The replay's own memory is planned and checked where it is made."""
    settings = {"runtime": "local", "device": "cpu", "algo": {"name": "r2d2"}, "train": {"batch": 3}}
    config = parse_config(settings)
    index = FLAT.observation[0].nbytes + 4 + 3 + 8  # reward, flags, action
    rows = (2 + 2) * 32  # two actors and two spare blocks of two groups of 16
    assert config.chunk_buffers == rows + 16
    assert experience_bytes(config, FLAT) == ((rows + 16) * 40 + 2 * 3 * 120) * index
    huge = parse_config({**settings, "train": {"batch": 10**9}})
    with pytest.raises(ConfigError, match=r"train.batch = 1000000000 .* chunk buffers .* lower replay.chunk"):
        check_learner(huge, FLAT)

"""The command line: what it passes on, what it prints, how it ends."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from seedflow.cli import cli
from seedflow.config import (
    RUN_CONFIG,
    Config,
    R2D2Config,
    VTraceConfig,
    config_names,
    dump_config,
    load_config,
)
from seedflow.errors import ConfigError, RunFailed, RunSuspended, SpecError
from seedflow.metrics import METRICS_FILE

PROGRAM = Path(sys.executable).parent / "seedflow"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments, catch_exceptions=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / RUN_CONFIG).write_text(dump_config(load_config("cartpole_vtrace", ["seed=42"])))
    return path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, dict[str, Any]]]:
    """Replaces training; holds the configuration and options of each call."""
    seen: list[tuple[Config, dict[str, Any]]] = []
    replace_training(monkeypatch, lambda config, **options: seen.append((config, options)))
    return seen


def replace_training(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    monkeypatch.setattr(importlib.import_module("seedflow.train"), "run_training", function)


def test_config_list_names_every_shipped_configuration() -> None:
    lines = invoke("config", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == list(config_names())


def test_config_show_prints_what_load_config_reads(tmp_path: Path) -> None:
    result = invoke("config", "show", "pong_vtrace", "train.batch=7")
    path = tmp_path / "shown.yaml"
    path.write_text(result.output)
    assert load_config(path) == load_config("pong_vtrace", ["train.batch=7"])


def test_config_schema_explains_settings() -> None:
    text = invoke("config", "schema").output
    assert "rpc: How observations and actions travel." in text
    assert "  train.batch = 16  (a whole number, 1 or more) - unrolls per update" in text
    algo = invoke("config", "schema", "algo").output
    assert algo.count("  algo.") == len(VTraceConfig.model_fields) + len(R2D2Config.model_fields)
    assert algo.count("\nalgo: ") == 2
    assert json.loads(invoke("config", "schema", "--json").output)["title"] == "Config"
    assert invoke("config", "schema", "nonsense").exit_code == 2


def test_a_wrong_setting_ends_with_code_2_and_one_message() -> None:
    result = invoke("config", "show", "pong_vtrace", "train.learnig_rate=1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "Error: train.learnig_rate = 1 (command line): no such setting; did you mean train.learning_rate?\n"
    )


def test_train_passes_on_the_configuration_and_the_directory(
    calls: list[tuple[Config, dict[str, Any]]], tmp_path: Path
) -> None:
    result = invoke("train", "cartpole_vtrace", "seed=3", "--run-dir", str(tmp_path / "new"))
    assert result.exit_code == 0
    assert calls == [
        (
            load_config("cartpole_vtrace", ["seed=3"]),
            {
                "run_dir": tmp_path / "new",
                "resume": False,
                "restore_replay": None,
                "resume_or_start": False,
                "name": "cartpole_vtrace",
                "driving": None,
            },
        )
    ]


def test_scheduler_options_select_the_cluster(calls: list[tuple[Config, dict[str, Any]]]) -> None:
    invoke("train", "cartpole_vtrace", "--scheduler", "tls://10.0.0.1:8786", "--tls-cert", "my cert: a.pem")
    config, _ = calls[0]
    assert config.runtime == "cluster"
    assert config.cluster.scheduler == "tls://10.0.0.1:8786"
    assert config.cluster.tls_cert == "my cert: a.pem"


def test_resuming_takes_the_runs_own_configuration(
    calls: list[tuple[Config, dict[str, Any]]], run_dir: Path
) -> None:
    invoke("train", "--resume", "--run-dir", str(run_dir), "train.total_agent_steps=5")
    config, options = calls[0]
    assert (config.seed, config.train.total_agent_steps) == (42, 5)
    assert (options["run_dir"], options["resume"], options["resume_or_start"]) == (run_dir, True, False)


def test_resume_or_start_starts_where_there_is_no_run_and_resumes_where_there_is(
    calls: list[tuple[Config, dict[str, Any]]], run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / METRICS_FILE).touch()
    unused = tmp_path / "unused"  # a run that was refused may have left its config
    unused.mkdir()
    (unused / RUN_CONFIG).write_text((run_dir / RUN_CONFIG).read_text())
    for directory in (unused, run_dir):
        invoke("train", "cartpole_vtrace", "seed=7", "--resume-or-start", "--run-dir", str(directory))
        invoke("train", "cartpole_vtrace", "--resume-or-start", "--run-dir", str(directory))
    assert [config.seed for config, _ in calls] == [7, 1, 7, 42]
    assert all(options["resume_or_start"] for _, options in calls)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing CONFIG: a YAML file or one of atari_r2d2, cartpole_masked_r2d2"),
        (["seed=1"], "Missing CONFIG"),
        (["cartpole_vtrace", "seed"], "Unexpected argument 'seed': expected section.key=value"),
        (["--resume"], "--resume needs --run-dir"),
        (["cartpole_vtrace", "--resume-or-start"], "--resume-or-start needs --run-dir"),
        (["cartpole_vtrace", "--resume", "--run-dir", "x"], "takes the run's own configuration"),
        (["--resume", "--resume-or-start", "--run-dir", "x"], "exclude each other"),
        (["pong_vtrace", "--scheduler", "a", "--scheduler-file", "b"], "exclude each other"),
        (["pong_vtrace", "--sceduler", "a"], "No such option"),
        (["no_such_config"], "neither a file nor a shipped configuration"),
        (["--resume", "--run-dir", "no/such/run"], "no such file or directory"),
    ],
)
def test_bad_usage_ends_with_code_2(
    calls: list[tuple[Config, dict[str, Any]]], arguments: list[str], said: str
) -> None:
    result = invoke("train", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert calls == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["network.encoder=nature"], "network.encoder = 'nature' needs exactly one image leaf"),
        (["device=cuda"], "device = 'cuda', but torch sees no CUDA device"),
        (["device=cpu", "rollout.unroll=1000000", "train.batch=100000"], "need at least"),
        (["env.id=CartPoel-v1"], "env.id = 'CartPoel-v1' cannot be made"),
        (["env.id=Pendulum-v1"], "expected a Discrete space"),
        (["env.kwargs.gravity=3"], "if it does not take these env.kwargs (['gravity'])"),
        (["env.wrappers=[TimeLimit]"], "did you mean 'gymnasium.wrappers:TimeLimit'?"),
        (
            ["env.wrappers=[{gymnasium.wrappers:TimeLimit: {steps: 3}}]"],
            "TimeLimit with {'steps': 3}: TypeError",
        ),
        (["runtime=cluster"], "no cluster is named"),
        (["runtime=cluster", "cluster.scheduler=roof://pigeon"], "expected an address like tcp://"),
    ],
)
def test_a_mistake_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    runtime = [] if "runtime=cluster" in overrides else ["runtime=inline"]
    result = invoke("train", "cartpole_vtrace", *runtime, *overrides)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("run_dir is in use"), 2, "Error: run_dir is in use\n"),
        (SpecError("the actions are continuous"), 2, "Error: the actions are continuous\n"),
        (RunFailed("actor 3 failed"), 1, "Error: actor 3 failed\n"),
        (RunSuspended("the allocation ends"), 75, "Error: the allocation ends\n"),
        (KeyboardInterrupt(), 130, "Stopped by SIGINT.\n"),
    ],
)
def test_how_training_ended_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def fail(config: Config, **options: Any) -> None:
        raise error

    replace_training(monkeypatch, fail)
    result = invoke("train", "cartpole_vtrace", "--run-dir", "unused")
    assert result.exit_code == code
    assert result.stderr == said


def test_what_was_noted_on_the_way_is_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: Config, **options: Any) -> None:
        error = RunFailed("actor 3 failed") if config.seed == 1 else KeyboardInterrupt()
        error.add_note("go on with: seedflow train --resume")
        raise error

    replace_training(monkeypatch, fail)
    assert invoke("train", "cartpole_vtrace").stderr == (
        "Error: actor 3 failed\ngo on with: seedflow train --resume\n"
    )
    assert invoke("train", "cartpole_vtrace", "seed=2").stderr == (
        "Stopped by SIGINT. go on with: seedflow train --resume\n"
    )


@pytest.mark.parametrize(("number", "runtime"), [(signal.SIGHUP, "local"), (signal.SIGTERM, "inline")])
def test_a_signal_unwinds_training_and_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, runtime: str
) -> None:
    unwound = []

    def train(config: Config, **options: Any) -> None:
        try:
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 10)  # the handler runs before this returns
        finally:
            unwound.append(True)

    replace_training(monkeypatch, train)
    before = signal.getsignal(number)
    result = invoke("train", "cartpole_vtrace", f"runtime={runtime}", "--run-dir", "unused")
    assert (result.exit_code, unwound) == (128 + number, [True])
    assert signal.getsignal(number) == before


@dataclass
class Played:
    return_mean: float = 480.25
    return_std: float = 10.5
    episodes: int = 20
    returns: tuple[float, ...] = (470.0, 490.5)
    lengths: tuple[int, ...] = (470, 490)
    deterministic: bool = False
    generation: int = 3
    agent_steps: int = 800_016


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces evaluation; holds what it was called with."""
    seen: dict[str, Any] = {}

    def evaluate(run_dir: Path, **options: Any) -> Played:
        seen.update(options, run_dir=run_dir)
        return Played(500.0, 0.0, deterministic=True) if options["deterministic"] else Played()

    monkeypatch.setattr(importlib.import_module("seedflow.evaluate"), "evaluate", evaluate)
    return seen


def test_eval_prints_one_json_object(evaluation: dict[str, Any], run_dir: Path) -> None:
    result = invoke("eval", str(run_dir), "--episodes", "20", "--deterministic", "--seed", "9", "--json")
    assert json.loads(result.output) == {
        "return_mean": 500.0,
        "return_std": 0.0,
        "episodes": 20,
        "episode_returns": [470.0, 490.5],
        "episode_lengths": [470, 490],
        "deterministic": True,
        "generation": 3,
        "agent_steps": 800_016,
    }
    assert evaluation == {"run_dir": run_dir, "episodes": 20, "deterministic": True, "seed": 9}


def test_eval_reports_sampled_and_most_likely_actions_side_by_side(
    evaluation: dict[str, Any], run_dir: Path
) -> None:
    result = invoke("eval", str(run_dir), "--both", "--require", "490")
    assert result.stdout.splitlines() == [
        "return 480.25 +- 10.50 (20 episodes, sampled actions)",
        "return 500.00 +- 0.00 (20 episodes, most likely actions)",
    ]
    assert "480.25 is below the required 490" in result.stderr, "it is the sampled ones that count"
    both = json.loads(invoke("eval", str(run_dir), "--both", "--json").output)
    assert (both["return_mean"], both["most_likely"]["return_mean"]) == (480.25, 500.0)
    refused = invoke("eval", str(run_dir), "--both", "--deterministic")
    assert refused.exit_code == 2
    assert "leave out --deterministic" in refused.stderr


@pytest.mark.parametrize(("required", "code"), [("475", 0), ("480.25", 0), ("480.5", 1), ("nan", 1)])
def test_eval_fails_below_the_required_return(
    evaluation: dict[str, Any], run_dir: Path, required: str, code: int
) -> None:
    result = invoke("eval", str(run_dir), "--require", required)
    assert "return 480.25 +- 10.50 (20 episodes, sampled actions)" in result.stdout
    assert result.exit_code == code
    assert ("is below the required" in result.stderr) == (code == 1)
    assert ("reaches the required" in result.stderr) == (code == 0)


def test_eval_of_a_missing_directory_is_bad_usage() -> None:
    result = invoke("eval", "no/such/run")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr


def test_plot_of_a_directory_without_metrics_fails_with_one_message(tmp_path: Path) -> None:
    result = invoke("plot", str(tmp_path), "-o", str(tmp_path / "out.svg"))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize(
    "program",
    [[str(PROGRAM)], [sys.executable, "-m", "seedflow"], [sys.executable, "-m", "seedflow.cli"]],
)
def test_the_program_says_its_version(program: list[str]) -> None:
    done = subprocess.run([*program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("seedflow, version ")


def test_the_commands_are_also_there_under_dask() -> None:
    command = [str(PROGRAM.with_name("dask")), "seedflow", "config", "show", "pong_vtrace", "seeds=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "did you mean seed?" in done.stderr

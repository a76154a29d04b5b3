"""What `seedflow.train` does around a run: names, refusals, resuming, and what it says."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from click.testing import CliRunner

import seedflow
from seedflow.cli import cli
from seedflow.config import Config, dump_config, load_config
from seedflow.errors import ConfigError, EnvironmentFault
from seedflow.finished import FinishedRun
from seedflow.run_record import RunRecord
from seedflow.saved import Saved, describe
from tests.small_runs import Constant, small_config

SHORT = {"total_agent_steps": 60}


def talking(**sections: Any) -> Config:
    """A small run that prints."""
    return small_config(metrics={"console": "plain"}, **sections)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Directory of a run that has taken all its steps."""
    seedflow.train(small_config(train=SHORT), run_dir=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The same, with an environment of somebody's own."""
    seedflow.train(small_config(train=SHORT), run_dir=tmp_path / "own", env_fn=Constant)
    return tmp_path / "own"


def test_a_run_says_where_it_is_and_at_the_end_what_to_do_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = seedflow.train(talking(train={"total_agent_steps": 600}), run_dir="runs/first")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Run directory: runs/first"
    assert all(line.startswith("first | ") for line in lines if "steps/s" in line)
    saved = Saved.newest(run.dir)
    assert saved is not None
    assert lines[-1].startswith(f"Finished {saved.agent_steps:,} steps, mean return ")
    assert lines[-1].endswith(
        "of the last episodes, saved as checkpoint 1 in runs/first/checkpoints; "
        "evaluate: seedflow eval runs/first"
    )
    assert repr(run) == f"<InlineRun ended in {run.dir}>"


def test_whatever_load_config_takes_is_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = small_config(train=SHORT)
    (tmp_path / "mine.yaml").write_text(dump_config(config))
    by_file, by_mapping = seedflow.train("mine.yaml"), seedflow.train(config.model_dump(mode="json"))
    assert by_file.dir.name.startswith("mine-20")
    assert by_mapping.dir.name.startswith("CartPole-v1-20")
    assert load_config(by_file.dir) == load_config(by_mapping.dir) == config
    with pytest.raises(ConfigError, match=r"did you mean cartpole_vtrace\?"):
        seedflow.train("cartpole_vtrac")


def test_a_run_that_is_refused_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for section in ({"network": {"encoder": "nature"}}, {"env": {"id": "CartPoel-v1"}}):
        with pytest.raises(ConfigError):
            seedflow.train(talking(**section))
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_an_environment_that_raises_before_the_run_is_named(tmp_path: Path) -> None:
    class Broken(Constant):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            raise ZeroDivisionError("the pole is gone")

    message = "env_fn raised ZeroDivisionError in its first steps: the pole is gone"
    with pytest.raises(EnvironmentFault, match=message):
        seedflow.train(small_config(), run_dir=tmp_path / "run", env_fn=Broken)
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_finished(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = Saved.newest(finished)
    assert saved is not None
    before = sorted(finished.rglob("*"))
    run = seedflow.train(talking(train=SHORT), run_dir=finished, resume=True)
    assert isinstance(run, FinishedRun)
    said = capsys.readouterr().out
    assert f"is already finished, {saved.agent_steps} of 60 steps; raise train.total_agent_steps" in said
    assert run.status().metrics["steps/agent"] == saved.agent_steps
    assert run.wait()
    assert sorted(finished.rglob("*")) == before


def test_changed_settings_are_said_and_stick_once_the_run_goes_on(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {"total_agent_steps": 120, "learning_rate": 0.01}
    with pytest.raises(ConfigError, match="nature"):
        seedflow.train(talking(train=more, network={"encoder": "nature"}), run_dir=finished, resume=True)
    assert load_config(finished).train.total_agent_steps == 60

    changed = talking(train=more)
    seedflow.train(changed, run_dir=finished, resume=True)
    assert load_config(finished) == changed
    said = capsys.readouterr().out.splitlines()
    assert "The run goes on with train.total_agent_steps = 120 (was 60)" in said
    assert "The run goes on with train.learning_rate = 0.01 (was 0.001)" in said
    assert 'The run goes on with metrics.console = "plain" (was "off")' in said
    assert not any("train.batch" in line for line in said)


def test_settings_stick_from_the_first_step_on(own: Path) -> None:
    seen: set[int] = set()

    class Looking(Constant):
        def step(self, action: int) -> Any:
            seen.add(load_config(own).train.total_agent_steps)
            return super().step(action)

    more = small_config(train={"total_agent_steps": 120})
    seedflow.train(more, run_dir=own, resume=True, env_fn=Looking)
    assert seen == {60, 120}  # 60 while it is looked at beforehand


def test_without_its_env_fn_a_run_is_neither_resumed_nor_evaluated(own: Path) -> None:
    more = small_config(train={"total_agent_steps": 120})
    with pytest.raises(ConfigError, match=r"an env_fn, 'Constant', .*: call seedflow.train\(.*env_fn=...\)"):
        seedflow.train(more, run_dir=own, resume=True)
    with pytest.raises(
        ConfigError, match=r"an env_fn, 'Constant', .*: call seedflow.evaluate\(.*env_fn=...\)"
    ):
        seedflow.evaluate(own, episodes=1)
    assert seedflow.evaluate(own, episodes=1, env_fn=Constant).returns == [5.0]


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (["eval"], "seedflow.evaluate("),
        (["train", "train.total_agent_steps=120", "--resume", "--run-dir"], "seedflow.train("),
    ],
)
def test_the_command_line_refuses_a_run_that_was_made_with_env_fn(
    own: Path, arguments: list[str], instead: str
) -> None:
    result = CliRunner().invoke(cli, [*arguments, str(own)])
    assert result.exit_code == 2
    assert "was made with an env_fn, 'Constant'" in result.stderr
    assert f"call {instead}" in result.stderr
    assert load_config(own).train.total_agent_steps == 60


def test_a_run_that_goes_on_with_env_fn_is_recorded_as_such(finished: Path) -> None:
    more = small_config(train={"total_agent_steps": 120})
    seedflow.train(more, run_dir=finished, resume=True, env_fn=lambda: gym.make("CartPole-v1"))
    assert RunRecord.read(finished).env_fn is not None


def test_what_to_do_with_a_run_that_was_made_with_env_fn(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    finished, stopped = describe(own, 60), describe(own, 1000)
    assert finished is not None
    assert stopped is not None
    assert finished.endswith("evaluate: seedflow.evaluate('own', env_fn=...)")
    assert stopped.endswith("go on with: seedflow.train('own', run_dir='own', resume=True, env_fn=...)")
    assert "of 1,000 steps as checkpoint 1 in own/checkpoints" in stopped
    assert describe(own.parent / "none", 60) is None


def test_an_interrupt_is_answered_at_once_and_notes_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting(Constant):
        left = 100

        def step(self, action: int) -> Any:
            Interrupting.left -= 1
            if not Interrupting.left:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        seedflow.train(talking(), run_dir="run", env_fn=Interrupting)
    assert "Stopping the run and saving a checkpoint ..." in capsys.readouterr().out
    (note,) = interrupt.value.__notes__
    assert note.startswith("Saved ")
    assert "of 600 steps as checkpoint 1 in run/checkpoints; go on with: " in note

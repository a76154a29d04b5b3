"""The directory of a run: taken by one run, cleared away if none comes of it."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from seedflow.config import RUN_CONFIG, Config
from seedflow.errors import ConfigError, PlacementError
from seedflow.metrics import METRICS_FILE
from seedflow.run_dir import (
    LOCK,
    check_run_dir,
    claimed,
    default_run_dir,
    holds_run,
    locked,
    shown,
    write_config,
)
from seedflow.run_record import RECORD, RunRecord


def checkpoint(directory: Path) -> None:
    manifests = directory / "checkpoints" / "manifests"
    manifests.mkdir(parents=True)
    (manifests / "00000001.json").touch()


@pytest.mark.parametrize("name", ["cartpole_vtrace", "my/cartpole_vtrace.yaml", "tests/cartpole_vtrace"])
def test_a_default_directory_is_named_by_what_is_run_and_when(name: str) -> None:
    directory = default_run_dir(name)
    assert directory.parent == Path("runs")
    assert directory.name.startswith("cartpole_vtrace-20")


def test_two_runs_of_one_second_get_directories_of_their_own(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "cartpole-20260101-120000"
    with ExitStack() as stack:
        names = [stack.enter_context(claimed(directory, new_name=True)).name for _ in range(3)]
    assert names == [directory.name, f"{directory.name}-2", f"{directory.name}-3"]


def refused_run(directory: Path, leaves: str | None = None) -> None:
    """A run that takes its directory and is refused then."""
    with claimed(directory):
        write_config(directory, Config())
        RunRecord().write(directory)
        if leaves is not None:
            (directory / leaves).mkdir()
        raise PlacementError("no worker")


def test_a_run_that_does_not_come_about_leaves_no_directory(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with pytest.raises(PlacementError):
        refused_run(directory)
    assert not directory.exists()


def test_what_was_in_a_directory_before_stays_and_what_a_refused_run_wrote_goes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(PlacementError):
        refused_run(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt"}


def test_a_run_that_has_left_something_keeps_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with pytest.raises(PlacementError):
        refused_run(directory, leaves="logs")
    assert {path.name for path in directory.iterdir()} == {LOCK, RUN_CONFIG, RECORD, "logs"}


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for new_name in (False, True):
        with (
            pytest.raises(ConfigError, match=r"run_dir = .*file/run cannot be made"),
            claimed(tmp_path / "file" / "run", new_name),
        ):
            pass


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening of the file and its locking, a run that did not come about may remove it."""
    opened: list[int] = []
    real = os.open

    def open_and_lose(path: Path, *arguments: int) -> int:
        fd = real(path, *arguments)
        if not opened:
            (tmp_path / LOCK).unlink()
        opened.append(fd)
        return fd

    monkeypatch.setattr(os, "open", open_and_lose)
    with locked(tmp_path):
        assert len(opened) == 2
        with pytest.raises(ConfigError, match="in use by another process"), locked(tmp_path):
            pass


def test_that_a_directory_is_in_use_is_said_first(tmp_path: Path) -> None:
    with claimed(tmp_path):
        for resume in (True, False):
            with pytest.raises(ConfigError, match="in use by another process"):
                check_run_dir(tmp_path, resume, False)
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        check_run_dir(tmp_path, True, False)


def test_a_directory_holds_a_run_once_there_are_metrics_or_a_checkpoint(tmp_path: Path) -> None:
    write_config(tmp_path, Config())
    assert not holds_run(tmp_path)
    assert check_run_dir(tmp_path, False, True) is False
    (tmp_path / METRICS_FILE).touch()
    assert holds_run(tmp_path)
    with pytest.raises(ConfigError, match="--resume-or-start"):
        check_run_dir(tmp_path, False, False)
    assert check_run_dir(tmp_path, False, True) is False
    checkpoint(tmp_path)
    assert check_run_dir(tmp_path, False, True) is True


def test_a_path_is_shown_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown(tmp_path / "runs" / "first") == Path("runs/first")
    assert shown(Path("/elsewhere")) == Path("/elsewhere")


def make_maze() -> None:
    """Stands for a user's function."""


def test_a_record_names_the_function_and_is_read_back(tmp_path: Path) -> None:
    assert RunRecord.read(tmp_path) == RunRecord(None)
    for env_fn in (make_maze, lambda: None, None):
        RunRecord.of(env_fn).write(tmp_path)
        assert RunRecord.read(tmp_path) == RunRecord.of(env_fn)
    assert RunRecord.of(make_maze).env_fn == "make_maze"
    assert RunRecord.of(None).env_fn is None


def test_without_the_function_a_run_that_was_made_with_one_is_refused(tmp_path: Path) -> None:
    record = RunRecord.of(make_maze)
    record.check_env_fn(tmp_path, True, "")
    RunRecord().check_env_fn(tmp_path, False, "")
    with pytest.raises(ConfigError, match=r"an env_fn, 'make_maze', .*: call seedflow.evaluate\(\)"):
        record.check_env_fn(tmp_path, False, "seedflow.evaluate()")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"format": "seedflow-run", "version": 1}', "KeyError"),
        ('{"format": "other", "version": 1, "env_fn": null}', "format 'other'"),
        ('{"format": "seedflow-run", "version": "1", "env_fn": null}', "version '1'"),
        ('{"format": "seedflow-run", "version": 2}', "has version 2, this release reads 1; upgrade seedflow"),
    ],
)
def test_a_damaged_or_newer_record_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(ConfigError, match=said):
        RunRecord.read(tmp_path)


def test_a_record_is_plain_json(tmp_path: Path) -> None:
    RunRecord.of(make_maze).write(tmp_path)
    document = json.loads((tmp_path / RECORD).read_text())
    assert document == {"format": "seedflow-run", "version": 1, "env_fn": "make_maze"}

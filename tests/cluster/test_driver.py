"""However a driver ends, nothing of its run is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from distributed import Client
from scripted_runs import actor_pids, alive, left_over, processes_of, wait_for

SCRIPT = Path(__file__).parent / "scripted" / "scripted_driver.py"
PROMISED_SECONDS = 30
pytestmark = pytest.mark.timeout(300)


class Driver:
    """A driver in a process group of its own, as a shell starts it."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        self.run_dir = run_dir
        self.errors = run_dir / "stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(run_dir), *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.family: list[psutil.Process] = []

    def read_until(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the driver ended before it said {word!r}:\n{self.errors.read_text()}")

    def until_running(self) -> None:
        self.read_until("started")
        for index in range(2):
            actor_pids(self.run_dir, index)
        self.remember_family()

    def remember_family(self) -> None:
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def left(self) -> set[int]:
        return left_over(self.run_dir) | {child.pid for child in self.family if alive(child.pid)}


@contextlib.contextmanager
def driver(run_dir: Path, *arguments: str) -> Iterator[Driver]:
    started = Driver(run_dir, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()
        for pid in started.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(autouse=True)
def _roles(scripted_roles: None) -> None:
    """Every driver here finds the scripted roles."""


def test_a_killed_driver_takes_its_local_cluster_along(tmp_path: Path) -> None:
    with driver(tmp_path) as running:
        running.until_running()
        assert len(processes_of(tmp_path)) == 5
        running.process.kill()
        wait_for(lambda: not running.left(), "every process is gone", PROMISED_SECONDS)
        assert running.errors.read_text() == ""  # nor a word of semaphores that it could not release


def test_a_killed_driver_leaves_nothing_on_a_foreign_cluster(tmp_path: Path, user_client: Client) -> None:
    with driver(tmp_path, user_client.scheduler.address) as running:
        running.until_running()
        assert len(processes_of(tmp_path)) == 5
        running.process.kill()
        wait_for(lambda: not running.left(), "every process is gone", PROMISED_SECONDS)
        assert (tmp_path / "learner.stopped").read_text() == "in order"
    assert user_client.submit(sum, [1, 2], pure=False).result(timeout=30) == 3


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["begun", "connected", "started"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_at_every_stage_without_a_traceback(
    tmp_path: Path, stage: str, number: signal.Signals, code: int
) -> None:
    with driver(tmp_path) as running:
        running.read_until(stage)
        if stage == "started":
            actor_pids(tmp_path, 0)
        running.remember_family()
        if number == signal.SIGINT:
            os.killpg(running.process.pid, number)  # as a terminal does
        else:
            running.process.send_signal(number)
        assert running.process.wait(timeout=120) == code
        assert running.errors.read_text() == ""
        wait_for(lambda: not running.left(), "every process is gone", PROMISED_SECONDS)
        if stage == "started":
            assert (tmp_path / "learner.stopped").read_text() == "in order"


@pytest.mark.slow
def test_repeated_signals_change_nothing_but_the_patience(tmp_path: Path) -> None:
    with driver(tmp_path) as running:
        running.until_running()
        running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: (tmp_path / "learner.stopped").exists(), "the learner is asked to stop")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(timeout=120) == 143
        assert running.errors.read_text() == ""
        wait_for(lambda: not running.left(), "every process is gone", PROMISED_SECONDS)


def test_a_finished_local_run_leaves_no_process_and_no_word(tmp_path: Path) -> None:
    with driver(tmp_path) as running:
        running.until_running()
        (tmp_path / "finish").touch()
        running.read_until("ended")
        assert running.process.wait(timeout=120) == 0
        wait_for(lambda: not running.left(), "every process is gone", PROMISED_SECONDS)
        assert running.errors.read_text() == ""

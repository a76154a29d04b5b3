"""Runs that go on in the background: detaching from one, following it, ending it.

A detached run is driven by a process of its own, in a session of its own, on the host where it was started.
Everything between it and others goes through the run's directory, so that any host that sees the directory
will do: the lock says whether the driver lives, ``driver.json`` how the run ended, ``metrics.jsonl`` and
``logs/driver.log`` how it is getting on, and a file asks for its end.

The roles of a detached run on a Dask cluster do not need their driver to go on, only to be replaced. If
it dies, the next `follow` or `stop` starts another one, which asks the workers what lives and goes on with
that.
"""

from __future__ import annotations

import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from seedflow.config import Config, load_config
from seedflow.driver_record import DriverRecord, clear_stop, request_stop
from seedflow.errors import ConfigError, RunFailed
from seedflow.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from seedflow.metrics import METRICS_FILE, Console
from seedflow.metrics.read import parse_line
from seedflow.private import private_directory
from seedflow.run_dir import default_run_dir, in_use, shown
from seedflow.saved import describe, how_to_resume

LOG = Path("logs") / "driver.log"
POLL_SECONDS = 0.5
LAST_LINES = 10
"""Lines of the log that a follower begins with."""
CODE_SECONDS = 5.0
"""How long the exit code of a driver that has gone may take to be seen, on a shared file system."""
DYING_SECONDS = 60.0
"""How long a run may take to end on request, beside the grace of its learner."""
UP = b"up"

Tell = Callable[[str], None]


def detach_training(
    arguments: Sequence[str], config: Config, run_dir: Path | None, name: str, tell: Tell
) -> int:
    """Start ``seedflow train ARGUMENTS`` in the background, and say how to get at it; returns the exit code.

    Parameters
    ----------
    arguments
        Without ``--run-dir``.
    config
        What they come to.
    run_dir, name
        Where it goes; without the former, a new directory that is named by the latter.
    """
    if config.runtime == "inline":
        raise ConfigError("runtime = 'inline' runs in the calling process and cannot be detached from it")
    directory = (default_run_dir(name) if run_dir is None else run_dir).absolute()
    if run_dir is None and directory.exists():  # another run of this second
        directory = directory.with_name(f"{directory.name}-{os.getpid()}")
    code = detach(["train", *arguments, "--run-dir", str(directory)], tell)
    if code == EXIT_DONE:
        path = shlex.quote(str(shown(directory)))
        tell(f"It goes on by itself; follow it by: seedflow attach {path}; end it by: seedflow stop {path}")
    return code


def detach(arguments: Sequence[str], tell: Tell) -> int:
    """Start ``seedflow ARGUMENTS --driver-fd FD`` as a process of its own, and wait until its run is up.

    What it prints until then is passed on.

    Returns
    -------
    int
        0 once the run is up, else the exit code of the process.
    """
    read_end, write_end = os.pipe()
    # A file and not a pipe: workers of a local cluster inherit it, and may write to it at any later time.
    with os.fdopen(read_end, "rb", buffering=0) as news, tempfile.TemporaryFile() as output:
        try:
            command = [sys.executable, "-m", "seedflow.cli", *arguments, "--driver-fd", str(write_end)]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        said = _Tail(Path(f"/proc/self/fd/{output.fileno()}"))
        try:
            while not select.select([news], [], [], POLL_SECONDS / 5)[0]:
                for line in said.lines():
                    tell(line)
            up = news.read(len(UP)) == UP
            code = EXIT_DONE if up else process.wait() or EXIT_FAILED
        except BaseException:
            process.terminate()  # it ends in order
            process.wait()
            raise
        for line in said.lines():
            tell(line)
    process.returncode = code  # one that is up is on its own: nobody waits for it here
    return code


def settle(directory: Path, fd: int) -> None:
    """In the background process: turn to the log, and tell who has started it that the run is up."""
    path = directory / LOG
    private_directory(path.parent)
    os.set_inheritable(fd, False)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.write(fd, UP)
    os.close(fd)


def follow(directory: Path, tell: Tell) -> int:
    """Show how a run is getting on until it ends; starts another driver where the one before has died.

    Returns
    -------
    int
        The run's exit code.

    Raises
    ------
    ConfigError
        If there is no such run.
    RunFailed
        If its driver has died and the run cannot go on.
    """
    record = _record(directory)
    config = load_config(directory)
    console = Console(config.train.total_agent_steps, config.metrics.console, directory.name)
    log, metrics = _Tail(directory / LOG, LAST_LINES), _Tail(directory / METRICS_FILE, 1)
    with console:
        while True:
            alive = in_use(directory)
            for line in log.lines():
                console.message(line)
            for line in metrics.lines():
                values = parse_line(line.encode())
                if values is not None and "event" not in values:
                    step = int(values.pop("step"))
                    console.write(step, {name: value for name, value in values.items() if "/" in name})
            if not alive:
                record = _ended(directory)
                if record.exit_code is not None:
                    break
                _revive(directory, config, record, console.message)
            time.sleep(POLL_SECONDS)
    words = describe(directory, config.train.total_agent_steps)
    if words is not None and not (directory / LOG).exists():  # else the driver has said so in its log
        tell(words)
    return record.exit_code


def stop(directory: Path, tell: Tell) -> None:
    """Have a run save a checkpoint and end, and wait for that.

    Raises
    ------
    ConfigError
        If there is no such run.
    RunFailed
        If it does not end in time, or fails.
    """
    record, config = _record(directory), load_config(directory)
    if not in_use(directory) and _ended(directory).exit_code is not None:
        tell(f"{shown(directory)} has ended already.")
        return
    request_stop(directory)
    if not in_use(directory):
        try:
            _revive(directory, config, record, tell)
        except BaseException:
            clear_stop(directory)
            raise
    deadline = time.monotonic() + config.cluster.stop_seconds + config.actor.stop_seconds + DYING_SECONDS
    while in_use(directory):
        if time.monotonic() >= deadline:
            driver = f"process {record.pid} on {record.host}"
            raise RunFailed(
                f"{shown(directory)} has not ended in time; its driver is {driver}, its log {directory / LOG}"
            )
        time.sleep(POLL_SECONDS)
    code = _ended(directory).exit_code
    if code not in (EXIT_DONE, EXIT_STOPPED):
        raise RunFailed(f"{shown(directory)} ended with exit code {code}; see {directory / LOG}")
    tell(describe(directory, config.train.total_agent_steps) or "It has saved no checkpoint.")


def _record(directory: Path) -> DriverRecord:
    record = DriverRecord.read(directory)
    if record is None:
        raise ConfigError(
            f"run_dir = {directory} holds no run that could be followed or stopped from here: expected the "
            "directory of one that was started with runtime=local or runtime=cluster, and is up"
        )
    return record


def _ended(directory: Path) -> DriverRecord:
    """The record of a driver that has gone; it may take a moment to be seen in full."""
    deadline = time.monotonic() + CODE_SECONDS
    while True:
        record = _record(directory)
        if record.exit_code is not None or time.monotonic() >= deadline or in_use(directory):
            return record
        time.sleep(POLL_SECONDS / 5)


def _revive(directory: Path, config: Config, record: DriverRecord, tell: Tell) -> None:
    """Start another driver in the place of one that has died."""
    driver = f"its driver, process {record.pid} on {record.host}, has died"
    if not record.outlived:
        raise RunFailed(
            f"{shown(directory)} has ended: {driver}, and such a run does not outlive it; "
            f"go on with: {how_to_resume(directory)}"
        )
    tell(f"{driver[0].upper()}{driver[1:]}; starting another one")
    code = detach(["attach", str(directory)], tell)
    if code != EXIT_DONE and not in_use(directory):  # else somebody else was faster
        raise RunFailed(
            f"no other driver could take over {shown(directory)}; go on with: {how_to_resume(directory)}"
        )


class _Tail:
    """The lines that are appended to a file, which may not be there yet.

    Parameters
    ----------
    last
        So many lines that are there already come first; None: all.
    """

    def __init__(self, path: Path, last: int | None = None) -> None:
        self._path, self._offset, self._last = path, 0, last

    def lines(self) -> list[str]:
        """Those that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        first, self._offset = self._offset == 0, self._offset + len(whole)
        found = whole.decode(errors="replace").splitlines()
        return found[-self._last :] if first and self._last is not None else found

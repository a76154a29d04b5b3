"""A program in a process group of its own, as a shell starts it, and all processes that come from it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from seedflow.interrupts import ENDING
from seedflow.metrics import METRICS_FILE
from seedflow.metrics.read import read_metrics

HERE = Path(__file__).parent
PROGRAM = Path(sys.executable).with_name("seedflow")
PATIENCE = 240.0
"""Seconds to wait for what takes a few on an idle machine."""
PROMISED_SECONDS = 30.0
"""Within which nothing of a run is left once its launcher is gone."""

TINY: dict[str, Any] = {
    "env": {
        "id": "seedflow/Synthetic-v0",
        "kwargs": {
            "observation_shape": [4],
            "observation_dtype": "float32",
            "num_actions": 2,
            "episode_length": 20,
        },
    },
    "actor": {"count": 1, "groups": 2, "envs_per_group": 2},
    "rollout": {"unroll": 5},
    "network": {"hidden": [16]},
    "train": {"batch": 4, "total_agent_steps": 1000},
    "rpc": {"path": "slab"},
    "metrics": {"every_seconds": 0.5, "tensorboard": False},
}
"""As small as a run can be: no gateway, no TensorBoard."""

ENDLESS = "train.total_agent_steps=1000000000"


def staged(**kwargs: Any) -> list[str]:
    """Overrides for the environment of `run_envs`."""
    return ["env.id=run_envs:Staged-v0", f"env.kwargs={json.dumps(kwargs)}"]


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Poll until `condition` holds; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)
    return value


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    """What a run has reported so far."""
    return read_metrics(run_dir) if (run_dir / METRICS_FILE).exists() else []


def steps(run_dir: Path) -> float:
    """Agent steps at the last report."""
    records = metrics(run_dir)
    return float(records[-1]["steps/agent"]) if records else 0.0


def learner_restarts(run_dir: Path) -> float:
    """How often the learner of the last report was placed again; -1 without a report."""
    records = metrics(run_dir)
    return float(records[-1]["learner/restarts"]) if records else -1.0


def resumptions(run_dir: Path) -> list[int]:
    """Agent steps of the checkpoints from which learners went on."""
    lines = (run_dir / METRICS_FILE).read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if record.get("event") == "resumed"]


def manifests(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints" / "manifests").glob("*.json"))


def progress(run_dir: Path) -> dict[str, float]:
    """The counters in the newest checkpoint."""
    saved: dict[str, float] = json.loads(manifests(run_dir)[-1].read_text())["state"]["progress"]
    return saved


class Launched:
    """A running program and its family.

    Every process that comes from it inherits a variable by which it is found, whoever its parent is by
    then. Sockets and temporary files go to a directory of the program's own.

    Attributes
    ----------
    marks
        Where `run_envs` leaves marks.
    """

    def __init__(self, command: Sequence[str], directory: Path, env: Mapping[str, str]) -> None:
        self.marker = f"SEEDFLOW_TEST_{secrets.token_hex(8)}"
        self.temporary = Path(tempfile.mkdtemp(prefix="sf-", dir="/tmp"))  # short: socket addresses are
        self.marks = self.temporary / "marks"
        self.marks.mkdir()
        number = len(list(directory.glob("stdout-*")))
        self._out, self._err = directory / f"stdout-{number}", directory / f"stderr-{number}"
        environment = {
            **os.environ,
            "PYTHONPATH": str(HERE / "envs"),
            "TMPDIR": str(self.temporary),
            "XDG_RUNTIME_DIR": str(self.temporary),
            "RUN_MARKS": str(self.marks),
            self.marker: "1",
            **env,
        }
        with self._out.open("wb") as out, self._err.open("wb") as err, _default_signals():
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def family(self, part: str = "") -> list[int]:
        """Living processes of the program, itself included, with `part` among their command line's words."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"{self.marker}=1".encode() not in (entry / "environ").read_bytes():
                    continue
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if state != "Z" and (not part or part in re.split(r"[ ;(]|import ", command)):
                found.append(int(entry.name))
        return found

    def children(self, pid: int) -> list[int]:
        """Living processes that a process has started itself."""
        return [child for child in self.family() if self.parent(child) == pid]

    @staticmethod
    def parent(pid: int) -> int:
        return psutil.Process(pid).ppid()

    def marked(self, point: str) -> bool:
        return (self.marks / point).exists()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Poll until `condition` holds; fails at once if the program ends before."""

        def holds() -> Any:
            value = condition()
            if not value and self.process.poll() is not None:
                raise AssertionError(
                    f"ended with {self.process.returncode} before {what}:\n{self.out}\n{self.err}"
                )
            return value

        return until(holds, what)

    def mark(self, point: str) -> None:
        (self.marks / point).touch()

    def connected_to(self, address: str) -> bool:
        """Whether the program itself has a connection to ``host:port``."""
        host, port = address.rsplit("/")[-1].split(":")
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        return any(c.raddr and c.raddr == (host, int(port)) for c in connections)

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT to the whole process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        """Ctrl-C as a terminal sends it, any other signal as ``kill`` does."""
        if number == signal.SIGINT:
            self.interrupt()
        else:
            self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait for the end, and check that nothing is left; returns the exit code."""
        code = self.wait(seconds)
        self.check_gone(5.0)
        return code

    def check_gone(self, seconds: float) -> None:
        """No process and no socket of the program is left, within some seconds."""
        until(lambda: not self.left(), "everything to be gone", seconds)

    def left(self) -> list[str]:
        """Processes and directories of sockets that are there still."""
        return [f"process {pid}" for pid in self.family()] + [
            str(path) for path in self.temporary.glob("seedflow-*")
        ]

    def check_quiet(self) -> None:
        """People are shown no traceback."""
        for text in (self.out, self.err):
            assert "Traceback" not in text, text
            assert "Exception ignored" not in text, text

    def clear(self) -> None:
        """End whatever is left and remove the temporary files."""
        for _ in range(50):
            family = self.family()
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process.poll() is not None and not family:
                break
            time.sleep(0.05)
        self.process.wait(10)
        shutil.rmtree(self.temporary, ignore_errors=True)


@contextlib.contextmanager
def _default_signals() -> Iterator[None]:
    """What is started inside does not ignore signals, even where the tests run in the background."""
    ignored = [number for number in ENDING if signal.getsignal(number) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler)  # one that is handled here has its default there
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


class Launcher:
    """Starts programs in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "tiny.yaml"
        self.config.write_text(json.dumps(TINY))  # JSON is YAML
        self._launched: list[Launched] = []

    def __call__(self, *command: str, env: Mapping[str, str] | None = None) -> Launched:
        launched = Launched(command, self.directory, env or {})
        self._launched.append(launched)
        return launched

    def hold(self, event: str, *command: str) -> Launched:
        """A program that stops at an event, see ``hold/sitecustomize.py``."""
        path = os.pathsep.join([str(HERE / "hold"), str(HERE / "envs")])
        return self(*command, env={"PYTHONPATH": path, "RUN_HOLD": event})

    def train(self, *arguments: str, name: str = "run", resume: bool = False) -> Launched:
        """``seedflow train`` with the tiny configuration, or the run's own; the run directory is `name`."""
        source = ["--resume"] if resume else [str(self.config)]
        return self(str(PROGRAM), "train", *source, "--run-dir", name, *arguments)

    def clear(self) -> None:
        for launched in self._launched:
            launched.clear()


@contextlib.contextmanager
def launcher(directory: Path) -> Iterator[Launcher]:
    """A launcher whose programs are ended and cleared away at the end, whatever happened."""
    started = Launcher(directory)
    try:
        yield started
    finally:
        started.clear()

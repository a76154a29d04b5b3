"""A run on the hosts of a lab, and what can be seen of it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from distributed import Client

from seedflow.driver_record import DriverRecord
from seedflow.metrics import METRICS_FILE
from seedflow.metrics.read import parse_line
from tests.hosts.lab import PROGRAM, Host, Lab, until

ACTORS = 2
LEASE_OPENED = re.compile(
    r"(?P<time>[\d-]+ [\d:,]+) .*: lease (?P<lease>\d+) of train actor \d+: "
    r"environments (?P<first>\d+) to (?P<last>\d+)$"
)
LEASE_OVER = re.compile(r".*: lease (?P<lease>\d+) is over$")
SETTINGS = (
    f"actor.count={ACTORS}",
    "actor.envs_per_group=4",
    "train.total_agent_steps=1000000000",
    "train.batch=8",
    "checkpoint.every_seconds=2",
    "checkpoint.keep=100000",
    "metrics.every_seconds=0.5",
    "metrics.tensorboard=false",
    "learner.max_restarts=100",
    "actor.max_restarts=100",
    "actor.reconnect_seconds=240",
    "cluster.worker_seconds=240",
    "cluster.learner_seconds=240",
)
"""CartPole on two small actors, without an end, and with patience for a machine that is busy."""


@dataclass(frozen=True)
class Counts:
    """What the newest report of the learner says, and when it was made (Unix seconds)."""

    time: float
    steps: int
    updates: int
    actors: int
    actor_restarts: int
    learner_restarts: int
    gateway_restarts: int


class Training:
    """A run that ``seedflow train --detach`` has started on a lab.

    Attributes
    ----------
    dir
        Its directory.
    client
        A connection of the cluster's owner.
    """

    def __init__(self, lab: Lab, client: Client, *settings: str) -> None:
        self.lab, self.client = lab, client
        self.dir = lab.directory / "run"
        self.program(
            "train",
            "cartpole_vtrace",
            *SETTINGS,
            *settings,
            "--run-dir",
            str(self.dir),
            "--detach",
            "--scheduler",
            lab.scheduler,
        )
        self.until_whole("the first steps")

    def program(self, *arguments: str) -> str:
        """Run ``seedflow`` to its end; returns what it has printed."""
        process = self.lab.start(str(PROGRAM), *arguments)
        code = process.wait(600)
        output = self.lab.output(process)
        assert code == 0, output
        return output

    def background(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``seedflow``."""
        return self.lab.start(str(PROGRAM), *arguments)

    def records(self) -> list[dict[str, Any]]:
        """Every line of the metrics, superseded or not."""
        try:
            lines = (self.dir / METRICS_FILE).read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := parse_line(line)) is not None]

    def counts(self) -> Counts | None:
        """The newest report."""
        records = self.records()
        if not records or "event" in records[-1]:
            return None
        last = records[-1]
        names = ("steps/agent", "train/updates", "lease/active", "actor/restarts", "learner/restarts")
        return Counts(last["time"], *(int(last.get(name, 0)) for name in (*names, "gateway/restarts")))

    def until_whole(self, what: str, learner_restarts: int | None = None, seconds: float = 300.0) -> Counts:
        """Wait until every actor is there and training has gone on since; returns the report that says so."""
        begun: Counts | None = None

        def whole() -> Counts | None:
            nonlocal begun
            counts = self.counts()
            if counts is None or counts.actors != ACTORS:
                return None
            if learner_restarts is not None and counts.learner_restarts != learner_restarts:
                return None
            if begun is None or begun.learner_restarts != counts.learner_restarts:
                begun = counts
            grown = counts.steps > begun.steps and counts.updates > begun.updates
            return counts if grown else None

        try:
            return until(whole, what, seconds)  # type: ignore[no-any-return]
        except AssertionError as error:
            log = self.dir / "logs" / "driver.log"
            error.add_note(f"{self.counts()}\n{log.read_text() if log.exists() else 'no driver.log'}")
            raise

    def generation(self, role: str) -> int:
        record = DriverRecord.read(self.dir)
        assert record is not None
        return record.generations[role]

    def actor_generations(self) -> int:
        """How often actors were started again, all together."""
        return sum(self.generation(f"actor-{index}") for index in range(ACTORS))

    def worker_of(self, role: str) -> str:
        """Address of the worker that hosts a role, such as ``actor-0``."""

        def found() -> str | None:
            key = f"-{role}-g{self.generation(role)}"
            for address, keys in self.client.processing().items():
                if any(str(name).startswith("seedflow-") and str(name).endswith(key) for name in keys):
                    return str(address)
            return None

        return str(until(found, f"the worker of {role}"))

    def host_of(self, address: str) -> Host:
        """The host of a worker."""
        ip = address.rsplit("/", 1)[-1].partition(":")[0]
        return next(host for host in self.lab.hosts if host.address == ip)

    def kill_worker(self, address: str) -> None:
        """SIGKILL to a worker; its nanny starts another one."""
        pid = self.client.run(os.getpid, workers=[address])[address]
        os.kill(int(pid), signal.SIGKILL)

    def until_gone(self, address: str, seconds: float = 300.0) -> float:
        """Wait until the scheduler has dropped a worker; returns when, in Unix seconds."""
        until(lambda: address not in self.workers(), f"{address} to be dropped", seconds)
        return time.time()

    def make_room_without(self, host: Host) -> None:
        """Have workers for the learner and every actor on the other hosts."""

        def elsewhere() -> int:
            return sum(self.host_of(address) is not host for address in self.workers())

        others = [other for other in self.lab.hosts if other is not host]
        for number in range(ACTORS + 1 - elsewhere()):
            others[number % len(others)].worker()
        until(lambda: elsewhere() > ACTORS, "workers on the other hosts")

    def workers(self) -> list[str]:
        info = self.client.scheduler_info(n_workers=-1)
        return list(info["workers"])

    def manifests(self) -> list[dict[str, Any]]:
        """The checkpoints, oldest first."""
        paths = sorted((self.dir / "checkpoints" / "manifests").glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def check_history(self) -> None:
        """One writer, nothing committed lost, and never more actors than there are.

        The checkpoints are one history: each is at least as far as the one before, which it would not be had
        a learner that was replaced gone on saving. And every learner went on from the newest.
        """
        saved = [int(manifest["state"]["progress"]["agent_steps"]) for manifest in self.manifests()]
        assert saved == sorted(saved)
        records = self.records()
        times = [float(manifest["created"]) for manifest in self.manifests()]
        assert times == sorted(times)
        for record in records:
            if record.get("event") == "resumed":
                before = [steps for steps, at in zip(saved, times, strict=True) if at <= record["time"]]
                assert record["step"] == before[-1]
            else:
                assert record.get("lease/active", 0) <= ACTORS
        restarts = [record["learner/restarts"] for record in records if "learner/restarts" in record]
        assert restarts == sorted(restarts)  # nor has it written metrics any more

    def check_leases(self) -> None:
        """No environment belongs to two actors at a time, within a learner's life or beyond."""
        paths = (self.dir / "logs").glob("learner-0-g*.log")
        logs = sorted(paths, key=lambda path: int(path.stem.rpartition("g")[2]))
        latest = ""  # time of the last lease so far
        for number, log in enumerate(logs):
            held: dict[str, set[int]] = {}
            times = []
            for line in log.read_text().splitlines():
                if opened := LEASE_OPENED.match(line):
                    lease, ids = opened["lease"], set(range(int(opened["first"]), int(opened["last"]) + 1))
                    for other, theirs in held.items():
                        assert not ids & theirs, (
                            f"{log.name}: leases {lease} and {other} share {ids & theirs}"
                        )
                    held[lease] = ids
                    times.append(opened["time"])
                elif over := LEASE_OVER.match(line):
                    del held[over["lease"]]
            assert times == sorted(times)
            # A learner grants nothing any more once the next one does.
            before = logs[number - 1].name
            assert not times or times[0] > latest, f"{before} went on beside {log.name}"
            latest = times[-1] if times else latest
        assert latest


@contextlib.contextmanager
def trained(lab: Lab, *settings: str) -> Iterator[Training]:
    """A run on four workers of a lab of three hosts: the learner's, two actors', and one to spare."""
    workers = [lab.hosts[0].worker(), lab.hosts[1].worker(), lab.hosts[2].worker("--nworkers", "2")]
    with lab.client() as client:
        client.wait_for_workers(len(workers) + 1, timeout=300)
        yield Training(lab, client, *settings)

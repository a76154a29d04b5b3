"""Training with actors that are batch jobs of their own, kept by dask-jobqueue.

The scheduler and the learner's worker are here, in the job of the learner or on a login node; each job of
actors is one Dask worker. How many of them there should be stands in a file and may change at any time.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client

from seedflow.batch.credentials import CERTIFICATE, KEY, security_of, write_credentials
from seedflow.batch.request import System, clock
from seedflow.config import Config
from seedflow.errors import ConfigError
from seedflow.interrupts import also_ended_by, starting_processes
from seedflow.private import private_directory

logger = logging.getLogger(__name__)

CLUSTERS = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster"}
WANTED = "actor_jobs"
"""The file of a run directory that says how many jobs there should be."""
LOOK_SECONDS = 10.0
"""Pause between looks at that file, and at jobs that were lost."""
STOP_SECONDS = 30.0
QUEUE_SECONDS = 7 * 86400.0
"""How long a job of actors may wait in a queue, unless `cluster.worker_seconds` is more."""


@dataclass(frozen=True)
class ActorJobs:
    """Jobs of actors.

    Attributes
    ----------
    system
        The batch system.
    jobs
        How many to begin with.
    actors
        Places, and cores, of each.
    seconds
        Until the batch system ends one; another one is submitted then.
    memory
        Of each, as Dask writes it.
    setup
        Lines of shell that each runs first.
    directives
        Further directives of each, without their mark.
    interface
        Name of the network; empty: any.
    scratch
        A disk of each host.
    """

    system: System
    jobs: int
    actors: int
    seconds: int
    memory: str = "2GB"
    setup: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    interface: str = ""
    scratch: str = "/tmp"


def train_with_actor_jobs(config: Config, run_dir: Path, asked: ActorJobs, name: str) -> None:
    """Train to the end of the configuration, or until a signal, with actors in batch jobs.

    Raises
    ------
    ConfigError
        If dask-jobqueue is not installed, and where `seedflow.train` does.
    RunFailed, RunSuspended
        Where `seedflow.train` does.
    """
    from seedflow.train import train

    private_directory(run_dir)
    config = _patient(config)
    with (
        also_ended_by(config.train.preemption_signal),
        _cluster(asked, run_dir) as cluster,
        _learner_worker(cluster, asked),
        _kept(cluster, run_dir, asked),
        Client(cluster, set_as_default=False, timeout=config.cluster.connect_seconds) as client,
        train(config, client, run_dir, resume_or_start=True, block=False, name=name) as run,
    ):
        while not run.wait(LOOK_SECONDS):
            pass


def wanted_jobs(run_dir: Path, before: int) -> int:
    """How many jobs there should be: what the file says, or as before where it says nothing that counts."""
    try:
        return max(0, int((run_dir / WANTED).read_text()))
    except (OSError, ValueError):
        return before


def _patient(config: Config) -> Config:
    """Begin with the first actor that has a place, however long its job waits in the queue."""
    changes: dict[str, Any] = {"worker_seconds": max(config.cluster.worker_seconds, QUEUE_SECONDS)}
    if config.cluster.min_actors is None:
        changes["min_actors"] = 1
    return config.model_copy(update={"cluster": config.cluster.model_copy(update=changes)})


@contextlib.contextmanager
def _cluster(asked: ActorJobs, run_dir: Path) -> Iterator[Any]:
    """A cluster of dask-jobqueue without jobs yet, whose connections are encrypted."""
    try:
        import dask_jobqueue
    except ImportError:
        raise ConfigError(
            "actors as batch jobs need the package dask-jobqueue, which is not installed: "
            "run pip install 'seedflow[hpc]'"
        ) from None
    logs = run_dir / "batch"
    logs.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cluster-", dir=logs) as place:
        write_credentials(Path(place))
        extra = (
            {"walltime": clock(asked.seconds)}
            if asked.system != "lsf"
            else {"walltime": clock(asked.seconds)[:-3]}
        )
        with warnings.catch_warnings(), starting_processes():
            warnings.simplefilter("ignore")
            cluster = getattr(dask_jobqueue, CLUSTERS[asked.system])(
                cores=asked.actors,
                processes=1,
                nanny=False,
                memory=asked.memory,
                job_name="seedflow-actors",
                job_extra_directives=list(asked.directives),
                job_script_prologue=list(asked.setup),
                worker_extra_args=[
                    "--resources",
                    f"ACTOR={asked.actors}",
                    "--no-dashboard",
                    "--memory-limit",
                    "0",
                ],
                python=sys.executable,
                interface=asked.interface or None,
                local_directory=asked.scratch,
                log_directory=str(logs),
                death_timeout=60,
                security=security_of(Path(place)),
                protocol="tls://",
                shared_temp_directory=place,
                scheduler_options={"dashboard_address": ":0"},
                silence_logs="error",
                **extra,
            )
        try:
            yield cluster
        finally:
            cluster.close(timeout=STOP_SECONDS)


@contextlib.contextmanager
def _learner_worker(cluster: Any, asked: ActorJobs) -> Iterator[None]:
    """A Dask worker on this host, for the learner alone."""
    credentials = Path(cluster.shared_temp_directory)
    command = [sys.executable, "-m", "dask", "worker", cluster.scheduler_address]
    command += ["--resources", "LEARNER=1", "--nthreads", "1", "--no-nanny", "--memory-limit", "0"]
    command += ["--no-dashboard", "--local-directory", tempfile.gettempdir(), "--death-timeout", "60"]
    command += ["--tls-ca-file", str(credentials / CERTIFICATE)]
    command += ["--tls-cert", str(credentials / CERTIFICATE), "--tls-key", str(credentials / KEY)]
    if asked.interface:
        command += ["--interface", asked.interface]
    log = credentials.parent / "LEARNER.log"
    with log.open("ab") as file, starting_processes():
        worker = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def _kept(cluster: Any, run_dir: Path, asked: ActorJobs) -> Iterator[None]:
    """As many jobs as are wanted, for the time of the block: dask-jobqueue replaces no lost one by itself."""
    ended = threading.Event()

    def keep() -> None:
        wanted = asked.jobs
        while True:
            wanted = wanted_jobs(run_dir, wanted)
            try:
                cluster.scale(jobs=wanted)
            except Exception as error:  # the batch system may be out of reach for a while
                logger.warning("cannot have %d jobs of actors now: %s", wanted, error)
            if ended.wait(LOOK_SECONDS):
                return

    thread = threading.Thread(target=keep, name="seedflow-actor-jobs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STOP_SECONDS)

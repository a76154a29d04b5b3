"""What is asked of a batch system, and how many cores and places that makes on each host."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seedflow.errors import ConfigError

System = Literal["slurm", "pbs", "lsf"]

LEAST_GRACE = 60
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


@dataclass(frozen=True)
class Request:
    """A run as a batch job.

    Attributes
    ----------
    system
        The batch system.
    config, settings
        As for `seedflow train`.
    roles
        Actor processes of the run, that for evaluation included.
    run_dir
        On a file system that every host sees.
    nodes
        Hosts of the job. With `elastic`, the learner's and one for each job of actors that it begins with.
    seconds
        Until the batch system ends the job.
    grace
        Seconds before that at which the run is told to save.
    cpus_per_node
        Cores of each host; None: as many as learner and actors need.
    learner_cpus
        Of these, on the learner's host, not for actors.
    gpus
        GPUs of the learner's host.
    memory
        Of each host, as the batch system writes it; None: its default.
    setup
        Lines of shell that every host runs first.
    container
        Words before Python's, which start it in a container.
    seeds
        First and last seed of an array, or None.
    elastic
        Whether actors are jobs of their own.
    requeue
        Whether a job that is to end is started again by itself.
    script
        Where the script will be; None: unknown.
    directives
        Further ones, without their mark.
    """

    system: System
    config: str
    roles: int
    run_dir: str
    seconds: int
    nodes: int = 1
    settings: tuple[str, ...] = ()
    name: str = "seedflow"
    grace: int = 120
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gpus: int = 0
    memory: str | None = None
    cpus_per_node: int | None = None
    learner_cpus: int = 2
    setup: tuple[str, ...] = ()
    container: tuple[str, ...] = ()
    python: str = "python3"
    interface: str = ""
    scratch: str | None = None
    seeds: tuple[int, int] | None = None
    elastic: bool = False
    requeue: bool = True
    script: Path | None = None
    directives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.grace < LEAST_GRACE or self.grace > self.seconds // 2:
            raise ConfigError(
                f"--grace = {self.grace} s: expected {LEAST_GRACE} s or more, and at most half of --time = "
                f"{self.seconds} s; a checkpoint has to be written within it"
            )
        if self.elastic and self.nodes < 2:
            raise ConfigError(
                f"--nodes = {self.nodes}: with --elastic expected 2 or more, the learner's and one for each "
                "job of actors"
            )
        if self.elastic and self.seeds is not None:
            raise ConfigError("--elastic and --seeds exclude each other: write one script for each seed")
        if self.elastic and self.container:
            raise ConfigError(
                "--elastic and --container exclude each other: jobs are submitted from within the run, and "
                "a container has no sbatch, qsub or bsub"
            )
        if self.qos is not None and self.system != "slurm":
            raise ConfigError(
                f"--qos = {self.qos}: only Slurm has it; give {self.system}'s own option with --directive"
            )
        if self.seeds is not None and self.seeds[0] > self.seeds[1]:
            raise ConfigError(f"--seeds = {self.seeds[0]}-{self.seeds[1]}: expected FIRST-LAST, ascending")
        if not self.elastic and self.places < self.roles:
            raise ConfigError(
                f"--cpus-per-node = {self.cpus_per_node}: {self.nodes} hosts have {self.places} cores for "
                f"actors, without {self.learner_cpus} of the learner (--learner-cpus), but the configuration "
                f"has {self.roles} actors (actor.count, and one if eval.every is set); ask for more, "
                "or lower actor.count"
            )

    @property
    def cpus(self) -> int:
        """Cores of each host."""
        if self.cpus_per_node is not None:
            return self.cpus_per_node
        if self.elastic:
            return math.ceil(self.roles / (self.nodes - 1))
        spread = math.ceil((self.roles + self.learner_cpus) / self.nodes)
        return max(self.learner_cpus, spread)

    @property
    def actors_on_head(self) -> int:
        """Actors that the learner's host can take."""
        return max(0, self.cpus - self.learner_cpus)

    @property
    def places(self) -> int:
        """Actors that the job can take."""
        return self.actors_on_head + (self.nodes - 1) * self.cpus


def parse_time(text: str) -> int:
    """Seconds of ``HH:MM:SS``, ``D-HH:MM:SS``, ``MINUTES``, or ``2h``, ``90m``, ``1d``.

    Raises
    ------
    ConfigError
        If it is none of these.

    Examples
    --------
    >>> [parse_time(text) for text in ("01:30:00", "1-00:00:00", "90", "2h")]
    [5400, 86400, 5400, 7200]
    """
    if match := re.fullmatch(r"(\d+)([dhms])", text):
        return int(match[1]) * _UNITS[match[2]]
    if match := re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d):([0-5]?\d)", text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if text.isdigit() and int(text) > 0:
        return int(text) * 60
    raise ConfigError(f"--time = {text}: expected HH:MM:SS, D-HH:MM:SS, minutes, or 2h, 90m, 1d")


def clock(seconds: int) -> str:
    """Seconds as ``HH:MM:SS``."""
    return f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}"

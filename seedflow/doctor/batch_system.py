"""The batch system whose commands are here, and the job that this is part of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from seedflow.doctor.finding import Finding

SECONDS = 20.0
SUBMITTING = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}
VERSIONS = {"slurm": ["sbatch", "--version"], "pbs": ["qstat", "--version"], "lsf": ["lsid", "-V"]}
JOBS = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"),
    "pbs": ("PBS_JOBID", "PBS_NODEFILE"),
    "lsf": ("LSB_JOBID", "LSB_HOSTS"),
}
"""The variables that name the job, and its hosts."""
SHORT_KILL_WAIT = 25
"""Seconds; `cluster.stop_seconds` is 20, and some of them are the way to the learner."""


def look_at_batch(environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Batch systems by their commands, what Slurm is set to, and the job around this process."""
    there = [system for system, command in SUBMITTING.items() if _is_here(command)]
    if not there:
        text = "none: sbatch, qsub and bsub are not found"
        remedy = "on a login node with another PATH: module load slurm, pbs or lsf"
        yield Finding("batch", "systems", [], text, "missing", remedy)
    for system in there:
        said = _output(VERSIONS[system])
        version = said.splitlines()[0] if said else "version unknown"
        yield Finding("batch", system, version, f"{version}; submit with `seedflow batch {system}`")
    if "slurm" in there:
        yield from _slurm_settings(_output(["scontrol", "show", "config"]))
    yield from _job(environ)


def _is_here(command: str) -> bool:
    """Whether a command is found that is not one of Slurm's, which bear the names of other systems."""
    path = shutil.which(command)
    if path is None or command == "sbatch":
        return path is not None
    with Path(path).open("rb") as program:
        return b"slurm" not in program.read(4096).lower()


def _slurm_settings(said: str) -> Iterator[Finding]:
    """What decides over requeueing and the time to save."""
    settings = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", said, flags=re.MULTILINE))
    if not settings:
        remedy = "check that slurmctld runs, and SLURM_CONF"
        yield Finding("batch", "controller", None, "Slurm's controller does not answer", "problem", remedy)
        return
    if "JobRequeue" in settings:
        requeues = settings["JobRequeue"] != "0"
        text = "jobs are requeued" if requeues else "requeueing is off (JobRequeue=0)"
        remedy = "" if requeues else "use a chain of jobs: seedflow batch slurm ... --chain N"
        yield Finding("batch", "requeue", requeues, text, "ok" if requeues else "missing", remedy)
    if (match := re.match(r"\d+", settings.get("KillWait", ""))) is not None:
        seconds = int(match[0])
        text = f"{seconds} s between SIGTERM and SIGKILL"
        remedy = f"set cluster.stop_seconds below {seconds}, and announce the end with --grace"
        short = seconds < SHORT_KILL_WAIT
        yield Finding("batch", "kill_wait_seconds", seconds, text, *(("missing", remedy) if short else ()))


def _job(environ: Mapping[str, str]) -> Iterator[Finding]:
    for system, (job, hosts) in JOBS.items():
        if environ.get(job):
            value = {"system": system, "job": environ[job], "hosts": environ.get(hosts)}
            text = f"this is job {environ[job]} of {system}, on {environ.get(hosts) or 'unnamed hosts'}"
            yield Finding("batch", "job", value, text)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip() or done.stderr.strip()) if done.returncode == 0 else ""

"""A script, put together of directives, settings and parts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import resources
from types import ModuleType

from seedflow.batch import lsf, pbs, slurm
from seedflow.batch.request import Request, System, clock

SYSTEMS: dict[System, ModuleType] = {"slurm": slurm, "pbs": pbs, "lsf": lsf}
TITLES = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF"}
SCRATCHES = {
    "slurm": "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}",
    "pbs": "${TMPDIR:-/tmp}",
    "lsf": "${LSF_TMPDIR:-${TMPDIR:-/tmp}}",
}
COLUMN = 40
LOCK_SECONDS = 300


def render(request: Request) -> str:
    """The script of a request, to be edited above its line and submitted."""
    system = SYSTEMS[request.system]
    lines = ["#!/bin/bash", f"# seedflow on {TITLES[request.system]}: {_purpose(request)}"]
    lines += [f"{system.MARK} {directive}" for directive in system.directives(request)]
    lines += ["", *_settings(request)]
    kind = ["elastic"] if request.elastic else [f"{request.system}_hosts", "workers"]
    parts = ["begin", request.system, "prepare", *kind, "drive"]
    return "\n".join(lines) + "\n" + "".join(_part(name) for name in parts)


def _purpose(request: Request) -> str:
    if request.elastic:
        return "scheduler and learner are one job, and actors are jobs that come and go"
    what = "one job holds scheduler, learner and actors"
    if request.gpus and request.nodes > 1:
        what += "; one of its hosts has a GPU"
    if request.seeds:
        what += ", for each seed"
    return what


def _settings(request: Request) -> Iterator[str]:
    """What people may edit, one line each, with what it is."""
    yield _line("CONFIG", request.config, "a file, or a shipped one: seedflow config list")
    yield _line("SETTINGS", request.settings, "section.key=value, on top of it")
    yield _raw("RUN_DIR", _run_dir(request), "on a file system that all hosts share")
    yield _line("PYTHON", request.python, "which has seedflow, after setup")
    if not request.elastic:
        yield _line("CONTAINER", request.container, "for example (apptainer exec --nv seedflow.sif)")
    yield _line("INTERFACE", request.interface, "of the network to use, for example ib0; empty: any")
    scratch = request.scratch and shlex.quote(request.scratch)
    yield _raw("SCRATCH", scratch or SCRATCHES[request.system], "on a disk of each host; a short path")
    if request.elastic:
        yield _line("SYSTEM", request.system, "of dask-jobqueue")
        yield _line("ACTOR_JOBS", request.nodes - 1, "jobs with actors; later: RUN_DIR/actor_jobs")
        yield _line("ACTORS_PER_JOB", request.cpus, "and cores of such a job")
        yield _line("ACTOR_TIME", clock(request.seconds), "until such a job ends and is replaced")
        yield _line("ACTOR_MEMORY", request.memory or "2GB", "of such a job")
        yield _line("ACTOR_DIRECTIVES", _for_actors(request), "of such a job")
    else:
        yield _line("ACTORS_PER_HOST", request.cpus, "at most")
        yield _line("ACTORS_ON_HEAD", request.actors_on_head, "beside the learner")
        yield _line("SCHEDULER_OPTIONS", (), "of dask scheduler, for example (--port 8786)")
        yield _line("WORKER_OPTIONS", (), "of dask worker: (--worker-port 30000:30100)")
    yield _line("REQUEUE", "yes" if request.requeue else "no", "start again where time was short")
    yield _line("LOCK_SECONDS", LOCK_SECONDS, "wait for an attempt that still saves")
    if request.system == "pbs":
        yield _line("WALLTIME", request.seconds, "seconds, as above")
        yield _line("GRACE", request.grace, "seconds before that, to save")
        yield _line("SCRIPT", str(request.script or ""), "this file, where it is to submit itself again")
    yield "setup() {  # on every host: module load, conda activate, export"
    yield from (f"    {line}" for line in request.setup or (":",))
    yield "}"


def _run_dir(request: Request) -> str:
    """Quoted, but for a variable at its beginning."""
    variable, slash, rest = request.run_dir.partition("/")
    if variable.startswith("$"):
        return f"{variable}{slash}{shlex.quote(rest) if rest else ''}"
    return shlex.quote(request.run_dir)


def _for_actors(request: Request) -> tuple[str, ...]:
    """What the jobs of actors need, too, as their batch system writes it."""
    found = []
    if request.account:
        found.append(
            {"slurm": "--account={}", "pbs": "-A {}", "lsf": "-P {}"}[request.system].format(request.account)
        )
    if request.partition:
        queue = {"slurm": "--partition={}", "pbs": "-q {}", "lsf": "-q {}"}[request.system]
        found.append(queue.format(request.partition))
    if request.qos:
        found.append(f"--qos={request.qos}")
    if request.constraint and request.system == "slurm":
        found.append(f"--constraint={request.constraint}")
    return (*found, *request.directives)


def _line(name: str, value: str | int | tuple[str, ...], meaning: str) -> str:
    if isinstance(value, tuple):
        return _raw(name, f"({' '.join(map(shlex.quote, value))})", meaning)
    return _raw(name, shlex.quote(str(value)) if value != "" else "", meaning)


def _raw(name: str, value: str, meaning: str) -> str:
    return f"{f'{name}={value}':{COLUMN}}  # {meaning}"


def _part(name: str) -> str:
    return (resources.files("seedflow.batch") / "parts" / f"{name}.sh").read_text(encoding="utf-8")

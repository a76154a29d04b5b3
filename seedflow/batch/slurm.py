"""Slurm's directives and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from seedflow.batch.request import Request, clock

MARK = "#SBATCH"
SUBMIT = "sbatch"
INDEX = "${SLURM_ARRAY_TASK_ID}"


def directives(request: Request) -> Iterator[str]:
    """What stands at the top of a script."""
    yield f"--job-name={request.name}"
    yield f"--time={clock(request.seconds)}"
    yield f"--signal=B:USR1@{request.grace}"  # to the script, which passes it on to the run
    yield "--requeue" if request.requeue else "--no-requeue"
    yield "--open-mode=append"
    yield "--no-kill"  # a host that fails takes its actors along, and nothing else
    yield f"--output=%x-{'%A_%a' if request.seeds else '%j'}.out"
    if request.account:
        yield f"--account={request.account}"
    if request.partition:
        yield f"--partition={request.partition}"
    if request.qos:
        yield f"--qos={request.qos}"
    if request.seeds:
        yield f"--array={request.seeds[0]}-{request.seeds[1]}"
    yield from request.directives
    split = request.gpus and request.nodes > 1 and not request.elastic
    nodes = 1 if split or request.elastic else request.nodes
    yield from _component(request, nodes, request.gpus)
    if split:
        yield "hetjob"  # what follows is for the hosts without a GPU
        if request.partition:
            yield f"--partition={request.partition}"
        yield from _component(request, request.nodes - 1, 0)


def _component(request: Request, nodes: int, gpus: int) -> Iterator[str]:
    cpus = request.learner_cpus if request.elastic else request.cpus
    yield f"--nodes={nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={cpus}"
    if gpus:
        yield f"--gres=gpu:{gpus}"
    if request.memory:
        yield f"--mem={request.memory}"
    if request.constraint:
        yield f"--constraint={request.constraint}"


def submission(script: str, after: str | None) -> Sequence[str]:
    """The command that submits a script, to begin where a job before it has ended early."""
    if after is None:
        return [SUBMIT, "--parsable", script]
    dependency = f"--dependency=afternotok:{after}"
    return [SUBMIT, "--parsable", dependency, "--kill-on-invalid-dep=yes", script]


def job_id(said: str) -> str | None:
    """The job's id in what the command has printed."""
    match = re.match(r"\d+", said.strip())
    return match[0] if match else None

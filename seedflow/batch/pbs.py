"""The directives and commands of PBS Professional and OpenPBS."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from seedflow.batch.request import Request, clock

MARK = "#PBS"
SUBMIT = "qsub"
INDEX = "${PBS_ARRAY_INDEX}"


def directives(request: Request) -> Iterator[str]:
    """What stands at the top of a script."""
    yield f"-N {request.name}"
    yield f"-l walltime={clock(request.seconds)}"
    yield "-S /bin/bash"
    yield "-j oe"  # one file for both streams
    yield f"-r {'y' if request.requeue else 'n'}"
    if request.account:
        yield f"-A {request.account}"
    if request.partition:
        yield f"-q {request.partition}"
    if request.seeds:
        yield f"-J {request.seeds[0]}-{request.seeds[1]}"
    yield from request.directives
    learner = _chunk(request, 1, request.gpus)
    more = 0 if request.elastic else request.nodes - 1
    if more and not request.gpus:
        yield f"-l select={_chunk(request, request.nodes, 0)}"
    else:
        yield f"-l select={learner}" + (f"+{_chunk(request, more, 0)}" if more else "")
    yield "-l place=scatter"


def _chunk(request: Request, nodes: int, gpus: int) -> str:
    cpus = request.learner_cpus if request.elastic else request.cpus
    parts = [f"{nodes}:ncpus={cpus}:mpiprocs=1"]
    if gpus:
        parts.append(f"ngpus={gpus}")
    if request.memory:
        parts.append(f"mem={request.memory.lower()}")
    if request.constraint:
        parts.append(request.constraint)
    return ":".join(parts)


def submission(script: str, after: str | None) -> Sequence[str]:
    """The command that submits a script, to begin where a job before it has ended early."""
    if after is None:
        return [SUBMIT, script]
    return [SUBMIT, "-W", f"depend=afternotok:{after}", script]


def job_id(said: str) -> str | None:
    """The job's id in what the command has printed."""
    match = re.match(r"\d+\S*", said.strip())
    return match[0] if match else None

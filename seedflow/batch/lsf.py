"""LSF's directives and commands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from seedflow.batch.request import Request

MARK = "#BSUB"
SUBMIT = "bsub"
INDEX = "${LSB_JOBINDEX}"
REQUEUE_CODE = 75


def directives(request: Request) -> Iterator[str]:
    """What stands at the top of a script."""
    array = f"[{request.seeds[0]}-{request.seeds[1]}]" if request.seeds else ""
    minutes = math.ceil(request.seconds / 60)
    yield f'-J "{request.name}{array}"'
    yield f"-W {minutes // 60:02}:{minutes % 60:02}"
    yield "-wa USR1"  # to the script, which passes it on to the run
    yield f"-wt {math.ceil(request.grace / 60)}"
    if request.requeue:
        yield f'-Q "{REQUEUE_CODE}"'
    yield f"-o %J{'_%I' if request.seeds else ''}.out"
    if request.account:
        yield f"-P {request.account}"
    if request.partition:
        yield f"-q {request.partition}"
    if request.memory:
        yield f"-M {request.memory}"
    yield from request.directives
    nodes = 1 if request.elastic else request.nodes
    cpus = request.learner_cpus if request.elastic else request.cpus
    yield f"-n {nodes * cpus}"
    yield f'-R "span[ptile={cpus}]"'
    if request.constraint:
        yield f'-R "select[{request.constraint}]"'
    if request.gpus:
        yield f'-gpu "num={request.gpus}:mode=shared"'  # of every host: only the learner's is used


def submission(script: str, after: str | None) -> Sequence[str]:
    """The command that submits a script, to begin where a job before it has ended early.

    LSF reads scripts from its standard input.
    """
    if after is None:
        return [SUBMIT]
    return [SUBMIT, "-w", f"exit({after})", "-ti"]  # -ti: ended where that can no longer come true


def job_id(said: str) -> str | None:
    """The job's id in what the command has printed."""
    match = re.search(r"Job <(\d+)>", said)
    return match[1] if match else None

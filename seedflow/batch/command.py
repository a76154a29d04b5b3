"""``seedflow batch``: scripts for batch systems, and what the elastic ones run."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seedflow.errors import ConfigError

if TYPE_CHECKING:
    from seedflow.config import Config

SYSTEMS = ("slurm", "pbs", "lsf")
Command = Callable[..., Any]


@click.group()
def batch() -> None:
    """Write and submit jobs for Slurm, PBS and LSF."""


def _options(command: Command) -> Command:
    """What the three systems have in common."""
    options = [
        click.argument("arguments", nargs=-1, metavar="CONFIG [SECTION.KEY=VALUE]..."),
        click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Hosts."),
        click.option("--time", "time_", required=True, metavar="T", help="HH:MM:SS, D-HH:MM:SS, 2h or 90m."),
        click.option("--grace", metavar="T", default="2m", show_default=True, help="To save in, of --time."),
        click.option("--account", metavar="NAME", help="Who pays."),
        click.option("--partition", metavar="NAME", help="Partition or queue."),
        click.option("--qos", metavar="NAME", help="Quality of service (Slurm)."),
        click.option("--constraint", metavar="WHAT", help="A property that every host must have."),
        click.option("--gpus", type=click.IntRange(min=0), default=0, help="Of the learner's host."),
        click.option("--memory", metavar="SIZE", help="Of each host, as the batch system writes it."),
        click.option("--cpus-per-node", type=click.IntRange(min=1), help="Default: as the actors need."),
        click.option(
            "--learner-cpus", type=click.IntRange(min=1), default=2, show_default=True,
            help="Cores of the learner's host that get no actor.",
        ),
        click.option("--setup", multiple=True, metavar="LINE", help="Run on every host first; repeatable."),
        click.option("--container", default="", metavar="WORDS", help="'apptainer exec --nv seedflow.sif'"),
        click.option("--python", metavar="PATH", help="Default: this one; python3 in a container."),
        click.option("--interface", default="", metavar="NAME", help="Network interface, for example ib0."),
        click.option("--scratch", metavar="DIR", help="On a disk of each host; a short path."),
        click.option("--seeds", metavar="FIRST-LAST", help="An array of jobs, one for each seed."),
        click.option("--elastic", is_flag=True, help="Actors as jobs of their own, by dask-jobqueue."),
        click.option("--directive", "directives", multiple=True, metavar="TEXT", help="A further one."),
        click.option("--run-dir", type=click.Path(path_type=Path), help="Default: runs/<config>-<time>."),
        click.option("--job-name", default="seedflow", show_default=True),
        click.option(
            "--chain", type=click.IntRange(min=1), default=1, metavar="N",
            help="Up to N jobs, one after the other, in place of requeueing; needs --submit.",
        ),
        click.option("--no-requeue", is_flag=True, help="Do not start again where time was short."),
        click.option("--submit", "submits", is_flag=True, help="Submit it."),
        click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: beside the run."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _write_command(system: str) -> click.Command:
    @click.command(
        name=system, help=f"Write a script for {system.upper() if system != 'slurm' else 'Slurm'}."
    )
    @_options
    def write(**options: Any) -> None:
        _write(system, **options)

    return write


for _system in SYSTEMS:
    batch.add_command(_write_command(_system))


def _write(
    system: Any,
    arguments: tuple[str, ...],
    time_: str,
    grace: str,
    run_dir: Path | None,
    output: Path | None,
    seeds: str | None,
    chain: int,
    no_requeue: bool,
    submits: bool,
    setup: tuple[str, ...],
    container: str,
    python: str | None,
    job_name: str,
    **given: Any,
) -> None:
    from seedflow.batch.request import Request, parse_time
    from seedflow.batch.script import render
    from seedflow.batch.submit import submit
    from seedflow.cluster.placement import actor_roles
    from seedflow.run_dir import default_run_dir, shown

    if chain > 1 and not submits:
        raise click.UsageError("--chain needs --submit: its jobs depend on each other's numbers.")
    if chain > 1 and seeds:
        raise click.UsageError("--chain and --seeds exclude each other.")
    source, settings, config = _configuration(arguments)
    directory = (run_dir or default_run_dir(source)).absolute()
    script = (output or directory.with_name(f"{directory.name}.sh")).absolute()
    words = tuple(shlex.split(container))
    request = Request(
        system=system,
        config=str(Path(source).absolute()) if Path(source).exists() else source,
        settings=(*settings, *_torch_threads(config, given["learner_cpus"])),
        roles=actor_roles(config),
        run_dir=str(directory),
        seconds=parse_time(time_),
        grace=parse_time(grace),
        name=job_name,
        seeds=_seeds(seeds),
        requeue=not no_requeue and chain == 1,
        setup=setup,
        container=words,
        python=python or ("python3" if words else sys.executable),
        script=script,
        **given,
    )
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(render(request), encoding="utf-8")
    script.chmod(0o755)
    click.echo(f"Script: {shown(script)}\nRun directory: {shown(directory)}")
    if submits:
        ids = submit(system, script, chain)
        click.echo(f"Submitted: {', '.join(ids)}")


def _configuration(arguments: Sequence[str]) -> tuple[str, tuple[str, ...], Config]:
    """CONFIG, the settings on top of it, and what they make."""
    from seedflow.config import config_names, load_config

    if not arguments or ("=" in arguments[0] and os.sep not in arguments[0].partition("=")[0]):
        raise click.UsageError(f"Missing CONFIG: a YAML file or one of {', '.join(config_names())}.")
    source, *settings = arguments
    for text in settings:
        if "=" not in text:
            raise click.UsageError(f"Unexpected argument {text!r}: expected section.key=value after CONFIG.")
    config = load_config(source, settings, called="command line")
    if config.runtime == "inline":
        raise ConfigError(
            "runtime = 'inline' is one process, which a batch script has no use for; leave it out"
        )
    return source, tuple(settings), config


def _torch_threads(config: Config, cpus: int) -> tuple[str, ...]:
    """The learner computes on the cores that it was given, not on those that the host has."""
    if config.train.torch_threads is not None or config.device == "cuda":
        return ()
    return (f"train.torch_threads={max(1, cpus - config.inference.torch_threads)}",)


def _seeds(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    if (match := re.fullmatch(r"(\d+)-(\d+)", text)) is None:
        raise click.UsageError(f"--seeds {text}: expected FIRST-LAST, for example 1-5.")
    return int(match[1]), int(match[2])


@batch.command(name="actors")
@click.argument("system", type=click.Choice(SYSTEMS))
@click.argument("arguments", nargs=-1, metavar="CONFIG [SECTION.KEY=VALUE]...")
@click.option("--run-dir", type=click.Path(path_type=Path), required=True)
@click.option("--resume-or-start", is_flag=True, help="Always so; the scripts say it.")
@click.option("--jobs", type=click.IntRange(min=0), default=1, show_default=True, help="To begin with.")
@click.option("--actors-per-job", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--time", "time_", required=True, metavar="T", help="Until a job ends and is replaced.")
@click.option("--memory", default="2GB", show_default=True, help="Of a job.")
@click.option("--setup", multiple=True, metavar="LINES", help="Run by a job first; repeatable.")
@click.option("--directive", "directives", multiple=True, metavar="TEXT", help="Of a job; repeatable.")
@click.option("--interface", default="", metavar="NAME", help="Network interface, for example ib0.")
@click.option("--scratch", default="/tmp", show_default=True, help="On a disk of each host.")
def batch_actors(
    system: Any,
    arguments: tuple[str, ...],
    run_dir: Path,
    resume_or_start: bool,
    jobs: int,
    actors_per_job: int,
    time_: str,
    **given: Any,
) -> None:
    """Train with the learner here and actors as batch jobs.

    What a script written with --elastic runs. The file actor_jobs in the run directory says how many jobs
    there should be; it may be written at any time.
    """
    from seedflow.batch.actors import ActorJobs, train_with_actor_jobs
    from seedflow.batch.request import parse_time
    from seedflow.config import load_config
    from seedflow.run_dir import holds_run

    source, settings, config = _configuration(arguments)
    run_dir = run_dir.absolute()
    if holds_run(run_dir):
        config = load_config(run_dir, settings, called="command line")
    asked = ActorJobs(system, jobs, actors_per_job, parse_time(time_), **given)
    train_with_actor_jobs(config, run_dir, asked, source)

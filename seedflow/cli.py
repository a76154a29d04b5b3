"""The command line: ``seedflow ...``, also reachable as ``dask seedflow ...``.

Commands are thin fronts of the Python API. What they need is imported when they run, so that help and
completion are fast and a mistake in a setting is reported before torch or Dask are loaded.

Exit codes: see `seedflow.exit_codes`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import seedflow
from seedflow.batch.command import batch
from seedflow.bench.command import bench
from seedflow.doctor.command import doctor
from seedflow.errors import RunStopped, SeedflowError
from seedflow.exit_codes import exit_code
from seedflow.interrupts import end_on_signals, ending_on_signals
from seedflow.replay.command import replay

if TYPE_CHECKING:
    from seedflow.evaluate import EvaluationResult
    from seedflow.experiment import Driving


class _Commands(click.Group):
    """The outermost group: turns errors and signals into one message and the exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with ending_on_signals():
                return super().invoke(ctx)
        except SeedflowError as error:
            said = str(error) if isinstance(error, RunStopped) else f"Error: {error}"
            click.echo("\n".join([said, *_notes(error)]), err=True)
            code = exit_code(error)
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt.__context__, SeedflowError):  # the program was ending because of it
                click.echo(f"Error: {interrupt.__context__}", err=True)
            code = exit_code(interrupt)
            stopped = f"Stopped by {signal.Signals(code - 128).name}."
            click.echo(" ".join([stopped, *_notes(interrupt)]), err=True)
        ctx.exit(code)


@click.group(cls=_Commands, name="seedflow", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(seedflow.__version__, prog_name="seedflow")
def cli() -> None:
    """Distributed deep RL: actors step environments, one learner does all network work."""


@cli.command()
@click.argument("arguments", nargs=-1, metavar="[CONFIG] [SECTION.KEY=VALUE]...")
@click.option("--run-dir", type=click.Path(path_type=Path), help="Default: runs/<config>-<time>.")
@click.option("--resume", is_flag=True, help="Go on with the run in --run-dir, under its own configuration.")
@click.option("--resume-or-start", is_flag=True, help="Go on if --run-dir holds a run, else start one there.")
@click.option("--restore-replay", metavar="PATH", help="Begin with the replay of another run's checkpoint.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on the Dask cluster of this scheduler.")
@click.option("--scheduler-file", metavar="FILE", help="Run on the Dask cluster that this file describes.")
@click.option(
    "--ship", metavar="MODULE", multiple=True, help="Send a module or package of yours along; repeat."
)
@click.option("--tls-ca-file", metavar="FILE", help="Certificate authority of the Dask cluster.")
@click.option("--tls-cert", metavar="FILE", help="Own certificate for the Dask cluster.")
@click.option("--tls-key", metavar="FILE", help="Key of that certificate.")
@click.option("--detach", is_flag=True, help="Return once the run is up; it goes on by itself.")
@click.option("--driver-fd", type=int, hidden=True)
def train(
    arguments: tuple[str, ...],
    run_dir: Path | None,
    resume: bool,
    resume_or_start: bool,
    restore_replay: str | None,
    ship: tuple[str, ...],
    detach: bool,
    driver_fd: int | None,
    **cluster: str | None,
) -> None:
    """Train an agent.

    CONFIG is a YAML file or the name of a shipped configuration (`seedflow config list`). Settings given
    as SECTION.KEY=VALUE come on top, for example train.batch=32.
    """
    if cluster["scheduler"] and cluster["scheduler_file"]:
        raise click.UsageError("--scheduler and --scheduler-file exclude each other.")
    if resume and resume_or_start:
        raise click.UsageError("--resume and --resume-or-start exclude each other.")
    if (resume or resume_or_start) and run_dir is None:
        raise click.UsageError(f"{'--resume' if resume else '--resume-or-start'} needs --run-dir.")
    source, overrides = _split(arguments)
    if resume and source is not None:
        raise click.UsageError(f"--resume takes the run's own configuration; leave out {source!r}.")

    from seedflow.config import config_names, load_config
    from seedflow.run_dir import holds_run

    if run_dir is not None and (resume or (resume_or_start and holds_run(run_dir))):
        source = str(run_dir.absolute())
    if source is None:
        raise click.UsageError(f"Missing CONFIG: a YAML file or one of {', '.join(config_names())}.")
    placed = {key: value for key, value in cluster.items() if value is not None}
    overrides += [f"cluster.{key}={json.dumps(value)}" for key, value in placed.items()]
    if cluster["scheduler"] or cluster["scheduler_file"]:
        overrides.append("runtime=cluster")
    config = load_config(source, overrides, called="command line")
    if ship:
        config = load_config(config, {"env.ship": list(dict.fromkeys([*config.env.ship, *ship]))})

    if detach:
        from seedflow.background import detach_training

        flags = {"--resume": resume, "--resume-or-start": resume_or_start}
        given = {"--restore-replay": restore_replay, **{f"--{k}": v for k, v in cluster.items()}}
        options = [flag for flag, on in flags.items() if on]
        options += [f"{name.replace('_', '-')}={value}" for name, value in given.items() if value]
        options += [f"--ship={module}" for module in ship]
        code = detach_training([*arguments, *options], config, run_dir, source, click.echo)
        click.get_current_context().exit(code)

    from seedflow.train import run_training

    run_training(
        config,
        run_dir=run_dir,
        resume=resume,
        resume_or_start=resume_or_start,
        name=source,
        restore_replay=restore_replay,
        driving=None if driver_fd is None else _driving(driver_fd),
    )


@cli.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--driver-fd", type=int, hidden=True)
def attach(run_dir: Path, driver_fd: int | None) -> None:
    """Follow a run: show its progress, and exit with its exit code.

    Where the driver of a detached run has died, another one is started in its place. Ctrl-C ends the
    following and not the run.
    """
    from seedflow.background import follow, settle

    directory = run_dir.absolute()
    if driver_fd is not None:
        from seedflow.train import take_over

        take_over(directory, lambda where: settle(where, driver_fd))
        return
    try:
        code = follow(directory, click.echo)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            f"The run goes on; follow it again by: seedflow attach {shlex.quote(str(run_dir))}"
        )
        raise
    click.get_current_context().exit(code)


@cli.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
def stop(run_dir: Path) -> None:
    """End a run in order, from any process that sees its directory: it saves a checkpoint first."""
    from seedflow.background import stop as stop_run

    stop_run(run_dir.absolute(), click.echo)


@cli.command(name="eval")
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--episodes", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--deterministic", is_flag=True, help="Take the most likely action instead of sampling.")
@click.option(
    "--both", is_flag=True, help="Evaluate once with sampled actions, once with the most likely ones."
)
@click.option("--seed", type=click.IntRange(min=0), help="Default: the run's.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--require", type=float, metavar="RETURN", help="Exit with 1 if the mean return is lower.")
def evaluate(
    run_dir: Path,
    episodes: int,
    deterministic: bool,
    both: bool,
    seed: int | None,
    as_json: bool,
    require: float | None,
) -> None:
    """Evaluate the newest checkpoint of a run.

    With --both, --json puts what the most likely actions gave under "most_likely", and --require is about the
    sampled ones.
    """
    if both and deterministic:
        raise click.UsageError(
            "--both evaluates with the most likely actions, too: leave out --deterministic."
        )
    from seedflow.evaluate import evaluate as run_evaluation

    results = [
        run_evaluation(run_dir, episodes=episodes, deterministic=likely, seed=seed)
        for likely in ([False, True] if both else [deterministic])
    ]
    if as_json:
        summaries = [_summary(result) for result in results]
        click.echo(json.dumps(summaries[0] | ({"most_likely": summaries[1]} if both else {})))
    else:
        for result in results:
            how = "most likely" if result.deterministic else "sampled"
            click.echo(
                f"return {result.return_mean:.2f} +- {result.return_std:.2f} "
                f"({result.episodes} episodes, {how} actions)"
            )
    # `not >=` so that a mean that is not a number fails, too.
    if require is None:
        return
    if not results[0].return_mean >= require:
        raise SeedflowError(f"the mean return {results[0].return_mean:.2f} is below the required {require:g}")
    click.echo(f"the mean return {results[0].return_mean:.2f} reaches the required {require:g}", err=True)


def _summary(result: EvaluationResult) -> dict[str, Any]:
    return {
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "episodes": result.episodes,
        "episode_returns": result.returns,
        "episode_lengths": result.lengths,
        "deterministic": result.deterministic,
        "generation": result.generation,
        "agent_steps": result.agent_steps,
    }


@cli.command()
@click.argument(
    "run_dirs", nargs=-1, required=True, metavar="RUN_DIR...", type=click.Path(exists=True, path_type=Path)
)
@click.option("-o", "--output", required=True, metavar="FILE", help="The figure: png, svg or pdf.")
@click.option("--metric", default="episode/return", show_default=True)
def plot(run_dirs: tuple[Path, ...], output: str, metric: str) -> None:
    """Draw a metric of one or several runs."""
    from seedflow.metrics.plot import plot_runs

    click.echo(plot_runs(run_dirs, output, metric=metric))


@cli.group()
def config() -> None:
    """Look at configurations and settings."""


@config.command(name="list")
def config_list() -> None:
    """List the shipped configurations."""
    from seedflow.config import config_names, config_summary

    width = max(map(len, config_names()))
    for name in config_names():
        click.echo(f"{name:{width}}  {config_summary(name)}")


@config.command(name="show")
@click.argument("arguments", nargs=-1, metavar="CONFIG [SECTION.KEY=VALUE]...")
def config_show(arguments: tuple[str, ...]) -> None:
    """Print all settings of a configuration, defaults included, as YAML.

    CONFIG is a YAML file, the name of a shipped configuration, or the directory of a run.
    """
    from seedflow.config import config_names, dump_config, load_config

    source, overrides = _split(arguments)
    if source is None:
        raise click.UsageError(f"Missing CONFIG: a YAML file or one of {', '.join(config_names())}.")
    click.echo(dump_config(load_config(source, overrides, called="command line")), nl=False)


@config.command(name="schema")
@click.argument("key", required=False, metavar="[SECTION]")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON Schema of a configuration file.")
def config_schema(key: str | None, as_json: bool) -> None:
    """Explain every setting, or those of one section: default, what it takes, what it is for."""
    from seedflow.config import Config
    from seedflow.config.describe import section_variants, settings

    if as_json:
        click.echo(json.dumps(Config.model_json_schema(), indent=2))
        return
    titles = {(name, variant): title for name, title, variant in section_variants()}
    wanted = [s for s in settings() if key is None or s.key == key or s.key.startswith(f"{key}.")]
    if not wanted:
        known = ", ".join(dict.fromkeys(name for name, _ in titles))
        raise click.UsageError(f"No section or setting {key!r}; the sections are {known}.")
    section = ("", "")
    for setting in wanted:
        owner = (setting.key.rpartition(".")[0], setting.variant)
        if owner[0] and owner != section:
            click.echo(f"\n{owner[0]}: {titles[owner]}")
        section = owner
        default = json.dumps(setting.default)
        purpose = f" - {setting.description}" if setting.description else ""
        click.echo(f"  {setting.key} = {default}  ({setting.takes}){purpose}")


cli.add_command(batch)
cli.add_command(bench)
cli.add_command(doctor)
cli.add_command(replay)


def main() -> NoReturn:
    """Entry point of the ``seedflow`` program."""
    ending = end_on_signals()
    try:
        cli(prog_name="seedflow")
    finally:
        ending.unwinding = True
    raise AssertionError("click ends the program")


def _driving(driver_fd: int) -> Driving:
    """How a run in the background is driven; who has started it waits at `driver_fd`."""
    from seedflow.background import settle
    from seedflow.experiment import Driving

    return Driving(outlived=True, started=lambda directory: settle(directory, driver_fd))


def _split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """CONFIG, if given, and the overrides behind it."""
    source, overrides = None, list(arguments)
    if overrides and ("=" not in overrides[0] or os.sep in overrides[0].partition("=")[0]):
        source = overrides.pop(0)
    for text in overrides:
        if "=" not in text:
            raise click.UsageError(f"Unexpected argument {text!r}: expected section.key=value after CONFIG.")
    return source, overrides


def _notes(error: BaseException) -> list[str]:
    """What was noted on an exception on its way: how to go on."""
    return list(getattr(error, "__notes__", ()))


if __name__ == "__main__":
    main()

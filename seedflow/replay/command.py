"""``seedflow replay``: the replay of a checkpoint as commands."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click


@click.group()
def replay() -> None:
    """Look into the replay of a checkpoint.

    PATH is a run directory, the checkpoints in it, or a URL that fsspec understands.
    """


@replay.command()
@click.argument("path")
@click.option("--generation", type=click.IntRange(min=1), help="Default: the newest that is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(path: str, generation: int | None, as_json: bool) -> None:
    """Say what a replay holds, without reading it all."""
    from seedflow.checkpoints import open_store
    from seedflow.replay.disk.health import describe_replay
    from seedflow.replay.disk.report import report_lines

    report = describe_replay(open_store(path), generation)
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(report_lines(report)))


@replay.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(path: str, as_json: bool) -> None:
    """Read, check and decode all generations; exit with 1 if anything is damaged."""
    from seedflow.checkpoints import open_store
    from seedflow.errors import CheckpointDamaged
    from seedflow.replay.disk.health import verify_checkpoints
    from seedflow.replay.disk.report import verified_lines

    store = open_store(path)
    found = verify_checkpoints(store)
    damaged = [health.generation for health in found if not health.whole]
    if as_json:
        generations = [health.to_json() for health in found]
        click.echo(json.dumps({"where": str(store), "whole": not damaged, "generations": generations}))
    else:
        click.echo("\n".join(verified_lines(found)))
    if damaged:
        raise CheckpointDamaged(f"{store}: generations {damaged} are damaged, of {len(found)}")


@replay.command()
@click.argument("path")
@click.option(
    "--minari", "out", required=True, metavar="OUT", type=click.Path(path_type=Path), help="Directory."
)
@click.option("--generation", type=click.IntRange(min=1), help="Default: the newest that is whole.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(path: str, out: Path, generation: int | None, as_json: bool) -> None:
    """Write the whole episodes of a replay as a Minari dataset, without loss."""
    from seedflow.checkpoints import open_store
    from seedflow.replay.disk.export import export_minari

    done = export_minari(open_store(path), out, generation)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
    else:
        click.echo(
            f"{done.path}: {done.episodes} episodes, {done.transitions} transitions of generation "
            f"{done.generation} as {done.dataset_id}; {done.incomplete} were not whole and are left out"
        )

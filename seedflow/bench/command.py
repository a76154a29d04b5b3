"""``seedflow bench``: the benchmarks as commands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

_full = click.option("--full", is_flag=True, help="Take more turns, for steadier figures.")
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def bench() -> None:
    """Measure parts of seedflow beside what else does the same, on this machine."""


@bench.command(name="kernels")
@_full
@_as_json
def bench_kernels(full: bool, as_json: bool) -> None:
    """Measure the CPU kernels beside plain torch and other libraries' sum trees, one thread each."""
    from seedflow.bench.kernels import measure

    results = []
    for measurement in measure(rounds=200 if full else 50):
        results.append(measurement.to_json())
        if not as_json:
            click.echo(f"{measurement}\n")
    if as_json:
        click.echo(json.dumps({"measurements": results}))


@bench.command(name="transport")
@_full
@_as_json
def bench_transport(full: bool, as_json: bool) -> None:
    """Measure what observations and actions cost on their way, beside a plain copy of the same bytes."""
    from seedflow.bench.transport import bench_transport as measure

    _show(measure(rounds=9 if full else 5), as_json)


@bench.command(name="train")
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@_full
@_as_json
def bench_train(workloads: tuple[str, ...], full: bool, as_json: bool) -> None:
    """Measure whole runs against the bound that bare environments and networks set.

    WORKLOAD is one of cartpole-64, cartpole-256, synthetic and pong; by default all.
    """
    from seedflow.bench.train import WORKLOADS
    from seedflow.bench.train import bench_train as measure

    known = [workload.name for workload in WORKLOADS]
    for name in workloads:
        if name not in known:
            raise click.UsageError(f"No workload {name!r}; the workloads are {', '.join(known)}.")
    _show(measure(rounds=5 if full else 3, names=workloads or None), as_json)


@bench.command(name="sweep")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the rates into this file.")
@_full
@_as_json
def bench_sweep(output: Path | None, full: bool, as_json: bool) -> None:
    """Measure one learner with 1 to 256 environments in up to 32 actor processes."""
    from seedflow.bench import sweep

    report = sweep.bench_sweep(rounds=3 if full else 1)
    if output is not None:
        sweep.draw(report, output)
    click.echo(json.dumps(report) if as_json else sweep.markdown(report))


@bench.command(name="replay")
@click.option("--sequences", type=click.IntRange(min=1000), default=100_000, show_default=True)
@click.option("--frames", type=click.IntRange(min=1000), default=200_000, show_default=True, help="Distinct.")
@_as_json
def bench_replay(sequences: int, frames: int, as_json: bool) -> None:
    """Fill, sample, save and restore a replay of frames of Atari games."""
    from seedflow.bench.replay import bench_replay as measure

    _show(measure(sequences, frames, note=lambda text: click.echo(text, err=True)), as_json)


def _show(report: Mapping[str, Any], as_json: bool) -> None:
    click.echo(json.dumps(report) if as_json else "\n".join(table(report)))


def table(report: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """A nested report as indented lines."""
    width = max((len(name) for name, value in report.items() if not isinstance(value, Mapping)), default=0)
    for name, value in report.items():
        indent = "  " * depth
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from table(value, depth + 1)
        else:
            yield f"{indent}{name:{width}}  {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if isinstance(value, float | int) else str(value)

"""``seedflow doctor``."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("--scheduler", metavar="ADDRESS", help="Look at the Dask cluster of this scheduler, too.")
@click.option("--scheduler-file", metavar="FILE", help="Look at the Dask cluster that this file describes.")
@click.option("--tls-ca-file", metavar="FILE", help="Certificate authority of the Dask cluster.")
@click.option("--tls-cert", metavar="FILE", help="Own certificate for the Dask cluster.")
@click.option("--tls-key", metavar="FILE", help="Key of that certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool, **cluster: str | None) -> None:
    """Say what is here, what is missing for what, and what to type.

    Looks at packages, this machine, its GPU and batch system, and at a Dask cluster if one is named. Exits
    with 1 if something is found with which runs fail.
    """
    if cluster["scheduler"] and cluster["scheduler_file"]:
        raise click.UsageError("--scheduler and --scheduler-file exclude each other.")
    from seedflow.config import parse_config
    from seedflow.doctor.examine import examine

    given = {key: value for key, value in cluster.items() if value is not None}
    report = examine(parse_config({"cluster": given}, "command line"))
    click.echo(json.dumps(report.to_json()) if as_json else "\n".join(report.lines()))
    if not report.healthy:
        click.get_current_context().exit(1)

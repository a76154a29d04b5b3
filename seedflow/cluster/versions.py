"""Python and packages of the driver and the workers: what must agree, and a table of what does not."""

from __future__ import annotations

from collections.abc import Mapping

from seedflow.errors import PlacementError

ACTOR_PACKAGES = ("numpy", "gymnasium", "grpcio", "protobuf", "cloudpickle", "pydantic", "psutil")
"""What actors cannot be without."""
LEARNER_PACKAGES = ("torch", "numba", "zarr", "safetensors", "tensorboard")
"""What the learner cannot be without, apart from those."""
PACKAGES = ("dask", "distributed", *ACTOR_PACKAGES, *LEARNER_PACKAGES)

Versions = Mapping[str, str | None]


def check_versions(own: Versions, workers: Mapping[str, Versions], learner: str) -> str | None:
    """Compare the versions of the driver with those of the workers.

    Parameters
    ----------
    own
        Of the driver.
    workers
        By address.
    learner
        The address of the learner's worker.

    Returns
    -------
    str or None
        A sentence and a table, where packages differ that may.

    Raises
    ------
    PlacementError
        Where Python's minor version or seedflow's version differs, or a package is missing; with the table.
    """
    for name in ("python", "seedflow"):
        if any(name in versions and versions[name] != own.get(name) for versions in workers.values()):
            title = "Python's minor version" if name == "python" else "seedflow"
            raise PlacementError(
                f"{title} is not the same in this process and on every worker that the run could use; "
                "install the driver's there, or start the workers in its "
                f"environment:\n{table(own, workers, (name,))}"
            )
    missing = {
        name
        for address, versions in workers.items()
        for name in (*ACTOR_PACKAGES, *(LEARNER_PACKAGES if address == learner else ()))
        if name in versions and versions[name] is None
    }
    if missing:
        names = tuple(name for name in PACKAGES if name in missing)
        raise PlacementError(
            f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} missing on a worker that the run could "
            f"use; install seedflow there with all that it needs:\n{table(own, workers, names)}"
        )
    compared = [
        name
        for name in PACKAGES
        if any(versions.get(name) not in (None, own.get(name)) for versions in workers.values())
    ]
    if not compared:
        return None
    return f"versions differ between this process and workers:\n{table(own, workers, tuple(compared))}"


def table(own: Versions, workers: Mapping[str, Versions], names: tuple[str, ...]) -> str:
    """One line for the driver and one for all workers that are alike."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for address, versions in sorted(workers.items()):
        alike.setdefault(_cells(versions, names), []).append(address)
    rows = [("", *names), ("here", *_cells(own, names))]
    for cells, addresses in alike.items():
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        rows.append((addresses[0] + more, *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(f"  {line.rstrip()}" for line in lines)


def _cells(versions: Versions, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(versions.get(name) or "-" for name in names)

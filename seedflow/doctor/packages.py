"""The versions of what seedflow needs, and which extras are there."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

import seedflow
from seedflow.doctor.finding import Finding

NEEDED = ("torch", "numba", "dask", "distributed", "grpcio", "gymnasium", "numpy", "zarr", "pydantic")
EXTRAS = {
    "atari": (("ale-py", "opencv-python-headless"), "Atari games"),
    "minatar": (("MinAtar",), "MinAtar"),
    "popgym": (("popgym",), "POPGym"),
    "plot": (("matplotlib",), "`seedflow plot`"),
    "minari": (("minari", "h5py"), "`seedflow replay export`"),
    "hpc": (("dask-jobqueue",), "actors as batch jobs of their own (`seedflow batch ... --elastic`)"),
}
"""What each extra brings, and what needs it; those for CUDA belong to the GPU."""


def version(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_at_packages() -> Iterator[Finding]:
    """Versions of Python, seedflow and what it needs; extras."""
    yield Finding("packages", "python", platform.python_version(), platform.python_version())
    yield Finding("packages", "seedflow", seedflow.__version__, seedflow.__version__)
    for package in NEEDED:
        found = version(package)
        if found is None:
            yield Finding("packages", package, None, "not installed", "problem", f"pip install {package}")
        else:
            yield Finding("packages", package, found, found)
    for extra, (packages, purpose) in EXTRAS.items():
        versions = {package: version(package) for package in packages}
        lacking = [package for package, found in versions.items() if found is None]
        if lacking:
            text = f"{', '.join(lacking)} not installed, needed for {purpose}"
            yield Finding("packages", extra, versions, text, "missing", f"pip install 'seedflow[{extra}]'")
        else:
            text = ", ".join(f"{package} {found}" for package, found in versions.items())
            yield Finding("packages", extra, versions, text)

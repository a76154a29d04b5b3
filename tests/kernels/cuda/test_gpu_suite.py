"""The tests for a GPU start on a machine that has torch, numba-cuda and pytest, and nothing else of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .toolkit import need_toolkit

need_toolkit()

ROOT = Path(__file__).resolve().parents[3]

# What seedflow and its other tests import.
ABSENT = (
    "hypothesis",
    "pytest_timeout",
    "pydantic",
    "yaml",
    "gymnasium",
    "grpc",
    "dask",
    "rich",
    "zarr",
    "cupy",
)

RUN = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # their import now fails
import pytest
raise SystemExit(pytest.main(sys.argv[1:]))
"""


def make_arguments() -> list[str]:
    """What ``make test-kernels-gpu`` hands to pytest."""
    command = re.search(
        r"\ntest-kernels-gpu:\n\t\$\(GPU_PYTHON\) -m pytest (.+)\n", (ROOT / "Makefile").read_text()
    )
    assert command is not None
    return command[1].split()


def test_it_starts_without_anything_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *make_arguments()],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^=+ \d+ skipped in", done.stdout, re.MULTILINE), done.stdout
    assert set(re.findall(r"^SKIPPED .*?: (.*)$", done.stdout, re.MULTILINE)) == {"needs a GPU"}

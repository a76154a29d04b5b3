"""CPU twins are safe from many threads, whatever threading layer Numba has."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def available(layer: str) -> bool:
    try:
        importlib.import_module(f"numba.np.ufunc.{layer}pool")
    except ImportError:
        return False
    return True


# The one that aborts a process whose threads run parallel functions at once is tried always.
SLOW = [pytest.param(layer, marks=pytest.mark.slow) for layer in ("omp", "tbb") if available(layer)]


@pytest.mark.parametrize("layer", ["workqueue", *SLOW])
def test_sixteen_threads_get_the_results_of_one(layer: str) -> None:
    environment = {**os.environ, "NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.hammer", layer],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("16 threads")
    assert done.stdout.endswith(f"{layer}\n")

"""One thread per numeric library: there are as many actors as cores, and each steps in one thread."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Read by the libraries when they are loaded, so set before the first import of numpy."""


def limit_threads(environ: MutableMapping[str, str] = os.environ) -> str:
    """Set every thread variable to 1; returns a line for the log that says what was set."""
    environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    return "threads: " + " ".join(f"{name}=1" for name in THREAD_VARIABLES)

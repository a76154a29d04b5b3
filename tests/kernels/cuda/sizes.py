"""The launches that a kernel's rule may ask for."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seedflow.kernels.cuda.launcher import Grid, Kernel

SIZES = (0, 1, 2, 7, 31, 32, 33, 100, 1023, 1024, 1025, 100_000)


def launches(kernel: Kernel) -> Iterator[tuple[Grid, Grid]]:
    """Grid and block for all combinations of some sizes."""
    count = len(inspect.signature(kernel.rule).parameters)
    for sizes in itertools.product(SIZES, repeat=count):
        yield kernel.rule(*sizes)

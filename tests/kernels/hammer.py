"""Every CPU twin from many threads at once, under one of Numba's threading layers.

``python -m tests.kernels.hammer LAYER`` with ``NUMBA_THREADING_LAYER=LAYER`` set. No kernel of seedflow is
parallel, so that the first round must not even start the layer. In the second round the main thread runs
a parallel function of somebody else's beside the kernels, which does start it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from .cases import CASES, Case, run

THREADS = 16


@numba.njit(parallel=True)  # type: ignore[untyped-decorator]
def somebody_elses(x: np.ndarray) -> float:
    total = 0.0
    for i in numba.prange(x.shape[0]):
        total += x[i]
    return total


def layer_in_use() -> str | None:
    """The threading layer of this process, None before a parallel function ran."""
    try:
        return str(numba.threading_layer())
    except ValueError:
        return None


def hammer(cases: list[Case], alone: list[list[np.ndarray]], meanwhile: Callable[[], None]) -> None:
    """Run all cases in every thread, each thread in an order of its own, and compare bit by bit."""
    start = threading.Barrier(THREADS)

    def work(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(cases))
        start.wait(timeout=60)
        for i in order:
            for result, expected in zip(run(cases[i], "cpu"), alone[i], strict=True):
                np.testing.assert_array_equal(result, expected, err_msg=str(cases[i]))

    with ThreadPoolExecutor(THREADS) as pool:
        running = [pool.submit(work, seed) for seed in range(THREADS)]
        while not all(done.done() for done in running):
            meanwhile()
        for done in running:
            done.result()


def main(layer: str) -> None:
    sys.setswitchinterval(1e-4)
    alone = [run(case, "cpu") for case in CASES]
    hammer(CASES, alone, meanwhile=lambda: threading.Event().wait(0.01))
    assert layer_in_use() is None, f"a kernel started the {layer_in_use()} layer"
    x = np.ones(1000)
    assert somebody_elses(x) == x.sum()
    assert layer_in_use() == layer, f"the {layer_in_use()} layer runs, not {layer}"

    def meanwhile() -> None:
        assert somebody_elses(x) == x.sum()

    hammer(CASES, alone, meanwhile)
    print(f"{THREADS} threads, {len(CASES)} cases, {layer}")


if __name__ == "__main__":
    main(sys.argv[1])

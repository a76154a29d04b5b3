"""Every twin gives the reference's results in every case, alone and from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from seedflow.kernels import registry

from .cases import CASES, IN_PLACE, LOSSES, Case, run

WITH_OUT = [case for case in CASES if case.operation not in {*IN_PLACE, *LOSSES}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_the_references(case: Case, device: str) -> None:
    case.check(run(case, device))


@pytest.mark.parametrize("case", WITH_OUT, ids=str)
def test_results_are_written_to_out(case: Case, device: str) -> None:
    case.check(run(case, device, with_out=True))


def test_every_operation_has_cases_a_cpu_twin_and_a_stand_in() -> None:
    assert {case.operation for case in CASES} == set(registry.operations())
    for operation in registry.operations():
        assert {"cpu", "torch"} <= set(registry.twins(operation))


def test_threads_at_once_get_the_same_results_as_one_alone() -> None:
    alone = [run(case, "cpu") for case in CASES]

    def run_all(seed: int) -> list[tuple[int, list[np.ndarray]]]:
        order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(CASES)), 5))
        return [(int(i), run(CASES[i], "cpu")) for i in order]

    with ThreadPoolExecutor(4) as pool:
        together = [pair for pairs in pool.map(run_all, range(4)) for pair in pairs]
    for i, results in together:
        for result, expected in zip(results, alone[i], strict=True):
            np.testing.assert_array_equal(result, expected)

"""In Numba's simulator every CUDA twin gives the reference's results; this takes all lines of its kernels."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from seedflow.kernels import registry
from seedflow.kernels.cuda import launcher, sum_tree, twins
from seedflow.kernels.cuda.simulator import CheckedArray
from seedflow.kernels.cuda.target import SIMULATED
from tests.kernels.cases import CASES, Case, run

assert SIMULATED

LARGEST_CASE = 6000  # numbers in its inputs
LEAST_COVERAGE = 0.95

Lines = frozenset[tuple[CodeType, int]]


def size(value: Any) -> int:
    """How many numbers there are in the inputs of a case."""
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    if isinstance(value, list):
        return sum(map(size, value))
    return value.size if isinstance(value, np.ndarray) else 0


TINY = [case for case in CASES if size(case.inputs()) <= LARGEST_CASE]


def kernel_functions() -> dict[CodeType, str]:
    """The functions that are compiled for GPUs, kernels and what they call, by their code."""
    modules = [module for module in vars(twins).values() if isinstance(module, ModuleType)]
    found = {}
    for module in modules:
        for name, value in vars(module).items():
            if hasattr(value, "py_func"):
                found[value.py_func.__code__] = f"{value.py_func.__module__}.{name}"
    return found


FUNCTIONS = kernel_functions()


def lines_of(code: CodeType) -> set[int]:
    """The lines of a function's body that do something."""
    lines, start = inspect.getsourcelines(code)
    body = start + next(i for i, line in enumerate(lines) if line.rstrip().endswith(":"))
    return {line for _, _, line in code.co_lines() if line is not None and line > body}


@contextmanager
def lines_noted(notes: set[tuple[CodeType, int]]) -> Iterator[None]:
    """Note the lines that run in the functions of kernels; each GPU thread is a thread here."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in FUNCTIONS:
            return None
        if event == "line":
            notes.add((frame.f_code, frame.f_lineno))
        return trace

    before = threading.gettrace()
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(before)  # type: ignore[arg-type]


@functools.cache
def simulate(case: Case) -> Lines:
    """Run a case, check its results, and return the lines that ran."""
    notes: set[tuple[CodeType, int]] = set()
    with pytest.MonkeyPatch.context() as patch, lines_noted(notes):
        patch.setitem(registry._twins[case.operation], "cpu", registry.twins(case.operation)["cuda"])
        case.check(run(case, "cpu"))
    return frozenset(notes)


@pytest.mark.parametrize("case", TINY, ids=str)
def test_results_are_the_references(case: Case) -> None:
    simulate(case)


@pytest.mark.timeout(600)  # alone it runs all cases
def test_the_cases_reach_the_lines_of_the_kernels() -> None:
    reached = frozenset().union(*map(simulate, TINY))
    every = {(code, line) for code in FUNCTIONS for line in lines_of(code)}
    missed = sorted(f"{FUNCTIONS[code]}:{line}" for code, line in every - reached)
    share = 1 - len(missed) / len(every)
    print(f"{share:.1%} of {len(every)} lines in {len(FUNCTIONS)} functions")
    assert share >= LEAST_COVERAGE, missed


def test_every_kernel_is_among_the_functions() -> None:
    assert {kernel.function.py_func.__code__ for kernel in launcher.KERNELS} <= set(FUNCTIONS)
    assert {case.operation for case in TINY} == set(registry.operations())


def test_a_sum_tree_is_set_by_several_launches_and_by_threads_with_several_entries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sum_tree, "THREADS", 32)
    monkeypatch.setattr(sum_tree, "ENTRIES", 100)
    (case,) = (case for case in CASES if str(case) == "sum_tree_set-256 of 5000")
    simulate.__wrapped__(case)


@pytest.mark.parametrize("index", [3, -1, (0, 0)])
def test_an_index_out_of_range_is_an_error(index: Any) -> None:
    array = CheckedArray(np.zeros(3))
    with pytest.raises(IndexError):
        array[index]
    with pytest.raises(IndexError):
        array[index] = 1.0

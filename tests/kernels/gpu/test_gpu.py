"""Every CUDA twin gives the reference's results on a GPU, on any stream and inside CUDA graphs.

Needs torch, numba-cuda and pytest only, see ``make test-kernels-gpu``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from seedflow import kernels
from seedflow.kernels import registry
from tests.kernels.cases import CASES, IN_PLACE, LOSSES, Case, changed, run, tensors, with_gradients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ONE_OF_EACH = [case for case in CASES if case.name in ("plain", "all valid", "every dtype", "rows with gaps")]
WITH_OUT = [case for case in CASES if case.operation not in {*IN_PLACE, *LOSSES}]
cases = pytest.mark.parametrize("case", CASES, ids=str)
some_cases = pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)


@pytest.fixture(scope="module", autouse=True)
def _cuda_twins() -> None:
    from seedflow.kernels.cuda import twins  # noqa: F401


@cases
def test_results_are_the_references(case: Case) -> None:
    case.check(run(case, "cuda"))


@pytest.mark.parametrize("case", WITH_OUT, ids=str)
def test_results_are_written_to_out(case: Case) -> None:
    case.check(run(case, "cuda", with_out=True))


@some_cases
def test_two_runs_give_the_same_bits(case: Case) -> None:
    for first, second in zip(run(case, "cuda"), run(case, "cuda"), strict=True):
        np.testing.assert_array_equal(first, second)


def test_every_operation_runs_its_kernels() -> None:
    assert {case.operation for case in ONE_OF_EACH} == set(registry.operations())
    for operation in registry.operations():
        assert registry.twin(operation, "cuda").__module__.startswith("seedflow.kernels.cuda.")


@some_cases
def test_numbas_own_launch_gives_the_same_bits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from seedflow.kernels.cuda import launcher

    packed = run(case, "cuda")
    for kernel in launcher.KERNELS:
        launch = launcher.NumbaLaunch(kernel.function, kernel.parameters)
        monkeypatch.setattr(kernel, "_launches", {torch.cuda.current_device(): launch})
    for expected, result in zip(packed, run(case, "cuda"), strict=True):
        np.testing.assert_array_equal(result, expected)


@some_cases
def test_work_goes_to_the_current_stream(case: Case) -> None:
    """Inputs come to a side stream behind a long wait: a launch on another stream would find zeros."""
    expected = run(case, "cuda")
    arguments, saved = tensors(case.inputs(), "cuda"), tensors(case.inputs(), "cuda")
    for tensor in flat(arguments):
        tensor.zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for tensor, content in zip(flat(arguments), flat(saved), strict=True):
            tensor.copy_(content)
        results = call(case, arguments)
    stream.synchronize()
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result.cpu().numpy(), wanted)


@some_cases
def test_a_cuda_graph_holds_the_kernels(case: Case) -> None:
    arguments = tensors(case.inputs(), "cuda")
    saved = tensors(case.inputs(), "cuda")
    call(case, arguments)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call(case, arguments)
    for _ in range(2):
        for tensor, content in zip(flat(arguments), flat(saved), strict=True):
            tensor.copy_(content)
        for result in results:
            if not any(result is tensor for tensor in flat(arguments)):
                result.zero_()
        graph.replay()
        torch.cuda.synchronize()
        case.check([result.cpu().numpy() for result in results])


def test_threads_launch_side_by_side() -> None:
    """Each in a fresh thread, which has no CUDA context of its own yet, and on a stream of its own."""
    expected = {str(case): run(case, "cuda") for case in ONE_OF_EACH}
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for case in ONE_OF_EACH * 3:
                    for result, wanted in zip(run(case, "cuda"), expected[str(case)], strict=True):
                        np.testing.assert_array_equal(result, wanted)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_what_is_wrong_is_refused_before_the_launch() -> None:
    from seedflow.errors import SpecError

    one = torch.ones(3, 2, device="cuda")
    clips = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "trace_decay": 1.0}
    with pytest.raises(SpecError, match="rewards is float64"):
        kernels.vtrace(one, one.double(), one, torch.ones(4, 2, device="cuda"), **clips)
    with pytest.raises(SpecError, match=r"values is .* on cpu: expected it on cuda"):
        kernels.vtrace(one, one, one, torch.ones(4, 2), **clips)


def test_rows_out_of_range_touch_nothing() -> None:
    table = torch.zeros(4, 8, device="cuda")
    rows = torch.tensor([-1, 4, 2**40, 2], device="cuda")
    kernels.recurrent_scatter([table], rows, [torch.ones(4, 8, device="cuda")])
    assert table.sum(1).tolist() == [0.0, 0.0, 8.0, 0.0]


def test_rows_are_gathered_from_pinned_memory() -> None:
    slab = torch.arange(3 * 4 * 6).reshape(3, 4, 6).pin_memory()
    flags = (slab[..., 0] % 2 == 0).pin_memory()
    blocks, rows = torch.tensor([2, 0, 2]), torch.tensor([3, 1, 0])
    found = kernels.slab_gather([slab, flags], blocks.cuda(), rows.cuda())
    for batch, field in zip(found, (slab, flags), strict=True):
        assert batch.is_cuda
        assert torch.equal(batch.cpu(), field[blocks, rows])


def test_memory_that_is_not_pinned_is_refused() -> None:
    from seedflow.errors import SpecError

    index = torch.zeros(2, dtype=torch.int64, device="cuda")
    with pytest.raises(SpecError, match=r"fields\[0\] is .* on cpu: expected it on cuda:0 .*pinned"):
        kernels.slab_gather([torch.zeros(3, 4)], index, index)


def test_cupy_arrays_are_shared() -> None:
    cupy = pytest.importorskip("cupy")
    from seedflow.kernels.cuda.interop import as_cupy, as_tensor

    array = cupy.arange(6.0)
    tensor = as_tensor(array)
    tensor[2] = 9.0
    assert float(array[2]) == 9.0
    assert as_cupy(tensor).data.ptr == tensor.data_ptr() == array.data.ptr


def call(case: Case, arguments: dict[str, Any]) -> list[torch.Tensor]:
    """Call the case's kernel; return its results and gradients, or what it changed."""
    function: Callable[..., Any] = getattr(kernels, case.operation)
    if case.operation in LOSSES:
        return with_gradients(case, function, arguments)
    results = function(**arguments)
    return changed(case, arguments) if case.operation in IN_PLACE else list(results)


def flat(arguments: Any) -> list[torch.Tensor]:
    """All tensors of a case's arguments."""
    if isinstance(arguments, dict):
        return [tensor for value in arguments.values() for tensor in flat(value)]
    if isinstance(arguments, list):
        return [tensor for value in arguments for tensor in flat(value)]
    return [arguments] if isinstance(arguments, torch.Tensor) else []

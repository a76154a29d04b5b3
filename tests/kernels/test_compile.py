"""Kernels inside torch.compile: one graph, the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from seedflow import kernels
from seedflow.kernels import registry

from .cases import CASES, IN_PLACE, LOSSES, Case, changed, tensors, with_gradients

SOME = [case for case in CASES if case.name in ("plain", "all valid", "every dtype")]


@pytest.fixture(autouse=True)
def _forget_graphs() -> Any:
    yield
    torch.compiler.reset()


def arguments_of_twin(case: Case, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What the twin of a case's kernel is called with."""
    calls: list[tuple[Any, ...]] = []
    twin = registry.twins(case.operation)["cpu"]

    def record(*arguments: Any) -> None:
        calls.append(arguments)
        twin(*arguments)

    with monkeypatch.context() as patch:
        patch.setitem(registry._twins[case.operation], "cpu", record)
        getattr(kernels, case.operation)(**tensors(case.inputs(), "cpu"))
    (arguments,) = calls
    return arguments


@pytest.mark.parametrize("case", SOME, ids=str)
def test_operators_keep_to_their_schema(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = getattr(torch.ops.seedflow, case.operation).default
    arguments = arguments_of_twin(case, monkeypatch)
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.filterwarnings("ignore")  # those of the tracer
@pytest.mark.parametrize("case", [case for case in SOME if case.operation in LOSSES], ids=str)
def test_a_losss_operator_for_graphs_is_differentiated_as_torch_expects(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = getattr(torch.ops.seedflow, f"{case.operation}_forward").default
    sources = len(LOSSES[case.operation])
    inputs = arguments_of_twin(case, monkeypatch)[: len(operator._schema.arguments)]
    inputs = (*(x.detach().requires_grad_() for x in inputs[:sources]), *inputs[sources:])
    torch.library.opcheck(operator, inputs)


@pytest.mark.filterwarnings("ignore")  # those of the tracer
@pytest.mark.parametrize("case", SOME, ids=str)
def test_a_compiled_function_holds_a_kernel_without_a_graph_break(case: Case) -> None:
    kernel: Callable[..., Any] = getattr(kernels, case.operation)
    arguments = tensors(case.inputs(), "cpu")
    if case.operation in LOSSES:
        compiled = torch.compile(kernel, backend="aot_eager", fullgraph=True)
        case.check([result.numpy() for result in with_gradients(case, compiled, arguments)])
        return
    results = torch.compile(lambda: kernel(**arguments), backend="aot_eager", fullgraph=True)()
    if case.operation in IN_PLACE:
        results = changed(case, arguments, results)
    results = [results] if isinstance(results, torch.Tensor) else results
    case.check([result.numpy() for result in results])


@pytest.mark.filterwarnings("ignore")  # those of the tracer
def test_gradients_pass_by_the_kernel_as_they_do_eagerly() -> None:
    inputs = tensors(SOME[0].inputs(), "cpu")

    def loss(values: torch.Tensor) -> torch.Tensor:
        returns = kernels.vtrace(**{**inputs, "values": values})
        return (returns.vs - values[:-1]).square().mean()

    eager, compiled = (inputs["values"].clone().requires_grad_() for _ in range(2))
    loss(eager).backward()
    torch.compile(loss, backend="aot_eager", fullgraph=True)(compiled).backward()
    assert eager.grad is not None
    torch.testing.assert_close(compiled.grad, eager.grad)

"""Losses whose kernel computes the gradient together with the value.

The forward pass keeps the gradients with respect to the differentiable inputs; the backward pass only
scales them. Eagerly this is one autograd node around the twin; under torch.compile it is a functional
operator, ``torch.ops.seedflow.<operation>_forward``, with a backward of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seedflow.kernels.registry import constant, define, define_functional, twin

Allocate = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class FusedLoss:
    """An operation that is a loss.

    Its twins take the inputs, then the results, then ``finite``. The results are the loss (a scalar),
    whatever else it reports, and the gradients of the first inputs; ``finite`` is an int32 scalar that a
    twin sets to 0 when a result is not finite, or None.

    Attributes
    ----------
    operation
        The public function's name.
    allocate
        Makes the results, uninitialized, from the inputs.
    differentiable
        How many inputs, from the first on, have a gradient.
    """

    operation: str
    allocate: Allocate
    differentiable: int

    def __call__(self, inputs: tuple[Any, ...], finite: Tensor | None) -> tuple[Tensor, ...]:
        """Compute the results without the gradients; the first one may be differentiated."""
        if torch.compiler.is_compiling():
            *results, is_finite = getattr(torch.ops.seedflow, f"{self.operation}_forward")(*inputs)
            if finite is not None:
                finite.mul_(is_finite)
            return tuple(results[: -self.differentiable])
        sources = inputs[: self.differentiable]
        if torch.is_grad_enabled() and any(x.requires_grad for x in sources):
            rest = inputs[self.differentiable :]
            results = _Node.apply(self, rest, finite, *sources)  # type: ignore[no-untyped-call]
            return cast(tuple[Tensor, ...], results)
        return self.compute(inputs, finite)[: -self.differentiable]

    def compute(self, inputs: tuple[Any, ...], finite: Tensor | None) -> tuple[Tensor, ...]:
        """Run the twin; returns all results."""
        inputs = (*map(constant, inputs[: self.differentiable]), *inputs[self.differentiable :])
        results = self.allocate(*inputs)
        twin(self.operation, inputs[0].device.type)(*inputs, *results, finite)
        return results


def define_loss(
    operation: str, inputs: str, results: tuple[str, ...], allocate: Allocate, differentiable: int
) -> FusedLoss:
    """Make a loss known to torch.

    Parameters
    ----------
    operation
        The public function's name.
    inputs
        The inputs in the language of `torch.library`.
    results
        Their names, the gradients last.
    allocate, differentiable
        See `FusedLoss`.
    """
    loss = FusedLoss(operation, allocate, differentiable)
    written = [f"Tensor({mark}!) {name}" for mark, name in zip("abcdefg", results, strict=False)]
    define(operation, f"{inputs}, {', '.join(written)}, Tensor(z!)? finite")

    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        finite = torch.ones((), dtype=torch.int32, device=arguments[0].device)
        return (*loss.compute(arguments, finite), finite)

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        return (*allocate(*arguments), arguments[0].new_empty((), dtype=torch.int32))

    def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*output[-1 - differentiable : -1])
        ctx.mark_non_differentiable(*output[1:])
        ctx.others = len(inputs) - differentiable

    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        return (*(gradient * saved for saved in ctx.saved_tensors), *[None] * ctx.others)

    outputs = ", ".join(["Tensor"] * (len(results) + 1))
    define_functional(f"{operation}_forward({inputs}) -> ({outputs})", forward, fake, keep, backward)
    return loss


class _Node(torch.autograd.Function):
    """The loss in an eager graph."""

    @staticmethod
    def forward(
        ctx: Any, loss: FusedLoss, rest: tuple[Any, ...], finite: Tensor | None, *sources: Tensor
    ) -> tuple[Tensor, ...]:
        results = loss.compute((*sources, *rest), finite)
        ctx.gradients = results[-loss.differentiable :]
        ctx.mark_non_differentiable(*results[1 : -loss.differentiable])
        ctx.set_materialize_grads(False)
        return results[: -loss.differentiable]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        kept: tuple[Tensor, ...] = ctx.gradients
        if gradient is None:
            return (None,) * (3 + len(kept))
        if gradient.device.type != "cpu" or gradient.item() != 1.0:  # elsewhere a look would wait
            kept = tuple(gradient * x for x in kept)
        return (None, None, None, *kept)

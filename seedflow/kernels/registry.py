"""Which code runs an operation on which device.

An operation's *twins* compute the same thing on different devices: ``"cpu"``, ``"cuda"``, and
``"torch"``, plain torch calls that work on any device and stand in where a device has no twin of its
own. A twin is called with checked arguments and preallocated results, and returns nothing.

Each operation is also an operator of `torch.library`, under ``torch.ops.seedflow``. Eager calls go to
the twin directly, which is faster; while torch.compile traces, `twin` gives the operator, so that a
graph does not break at a kernel.

A twin joins by registering, as its module is imported. Those for CUDA, in `seedflow.kernels.cuda`, are
imported when the first CUDA tensor needs one.

Examples
--------
The operation's public function then finds it for tensors of that device::

    @register("recurrent_scatter", "cuda")
    def _recurrent_scatter_cuda(tables, rows, values): ...
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

Twin = Callable[..., None]

PORTABLE = "torch"

_twins: dict[str, dict[str, Twin]] = {}
_library = cast(Any, torch.library.Library)("seedflow", "FRAGMENT")  # untyped


def define(operation: str, parameters: str) -> None:
    """Make an operation known to torch.

    Parameters
    ----------
    operation
        The public function's name.
    parameters
        The twins' parameters in the language of `torch.library`; what is written to is marked, as
        in ``Tensor(a!)``.
    """

    def call(device_type: str) -> Twin:
        return lambda *arguments: _pick(operation, device_type)(*arguments)

    _twins[operation] = {}
    _library.define(f"{operation}({parameters}) -> ()")
    _library.impl(operation, call("cpu"), "CPU")
    _library.impl(operation, call("cuda"), "CUDA")
    torch.library.register_fake(f"seedflow::{operation}", lambda *arguments: None, lib=_library)


def define_functional(
    schema: str,
    implementation: Callable[..., tuple[Tensor, ...]],
    fake: Callable[..., tuple[Tensor, ...]],
    keep: Callable[..., None],
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> None:
    """Add an operator that returns new tensors and can be differentiated, for graphs.

    Parameters
    ----------
    schema
        Name, parameters and results in the language of `torch.library`.
    implementation, fake
        What it computes, with contents and without.
    keep, backward
        As in `torch.library.register_autograd`.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"seedflow::{name}", fake, lib=_library)
    torch.library.register_autograd(f"seedflow::{name}", backward, setup_context=keep, lib=_library)


def register(operation: str, device_type: str) -> Callable[[Twin], Twin]:
    """Return a decorator that makes a function the twin of `operation` on `device_type`.

    Parameters
    ----------
    operation
        The public function's name.
    device_type
        A torch device type (``"cpu"``, ``"cuda"``), or ``"torch"`` for the stand-in.

    Raises
    ------
    ValueError
        When that twin is registered already.
    """

    def add(function: Twin) -> Twin:
        registered = _twins[operation]
        if device_type in registered:
            raise ValueError(
                f"operation {operation!r} already has a twin for {device_type!r} "
                f"({registered[device_type]!r}): expected one twin a device"
            )
        registered[device_type] = function
        return function

    return add


def twin(operation: str, device_type: str) -> Twin:
    """Return the twin of `operation` for a device type, or the stand-in where there is none."""
    if torch.compiler.is_compiling():
        return cast(Twin, getattr(torch.ops.seedflow, operation))
    return _pick(operation, device_type)


def constant(tensor: Tensor) -> Tensor:
    """Return a tensor without its part in the graph, at little cost where it has none."""
    return tensor.detach() if tensor.requires_grad else tensor


def twins(operation: str) -> Mapping[str, Twin]:
    """Return all twins of `operation` by device type."""
    return dict(_twins[operation])


def operations() -> tuple[str, ...]:
    """Return the names of all registered operations."""
    return tuple(_twins)


def _pick(operation: str, device_type: str) -> Twin:
    registered = _twins[operation]
    if device_type == "cuda" and device_type not in registered:
        importlib.import_module("seedflow.kernels.cuda.twins")
    return registered.get(device_type) or registered[PORTABLE]

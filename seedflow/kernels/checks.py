"""Checks at the kernels' door. Their errors name the argument, what it is and what was expected.

A twin trusts its arguments (the Numba ones compute raw addresses), so each public function runs these
first. All of them raise `SpecError`. They run at every call: the usual case is decided by a few
comparisons, and words are found only for a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seedflow.errors import NumericalError, SpecError

MOVABLE_DTYPES = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.bool,
    }
)


def describe(tensor: Tensor) -> str:
    """Return dtype, shape and device in words: ``float32 [20, 32] on cpu``."""
    return f"{_word(tensor.dtype)} {list(tensor.shape)} on {tensor.device}"


def check_rank(name: str, tensor: Tensor, rank: int, axes: str) -> None:
    """Check that a tensor has at least `rank` axes, which `axes` spells."""
    if tensor.ndim < rank:
        raise SpecError(f"{name} has rank {tensor.ndim} ({describe(tensor)}): expected {axes}; reshape it")


def check_array(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    axes: str,
    leading: int = 0,
) -> None:
    """Check all that an array has to be.

    Parameters
    ----------
    name
        The argument, for the error.
    tensor
        The array.
    shape, dtype, device
        What is expected.
    axes
        The shape in words, and where it comes from.
    leading
        How many leading axes may have any strides, as those of a view into shared memory do; the
        axes behind them must be one dense run.
    """
    if (
        tensor.dtype is dtype
        and tensor.shape == shape
        and tensor.device == device
        and (tensor.is_contiguous() or _dense(tensor, leading))
    ):
        return
    if tensor.ndim != len(shape):
        raise SpecError(
            f"{name} has rank {tensor.ndim} ({describe(tensor)}): expected {list(shape)}, {axes}; reshape it"
        )
    if tensor.shape != shape:
        raise SpecError(f"{name} is {describe(tensor)}: expected shape {list(shape)}, {axes}")
    if tensor.dtype is not dtype:
        raise SpecError(f"{name} is {describe(tensor)}: expected dtype {_word(dtype)}; convert it")
    if tensor.device != device:
        raise SpecError(f"{name} is {describe(tensor)}: expected it on {device} like the others; move it")
    _raise_strides(name, tensor, leading)


def check_floating(name: str, tensor: Tensor, device: torch.device) -> None:
    """Check that a tensor is float32, or float64 on CPU."""
    if tensor.dtype is torch.float32 or (tensor.dtype is torch.float64 and device.type == "cpu"):
        return
    raise SpecError(f"{name} is {describe(tensor)}: expected dtype float32; convert it")


def check_finite(**arrays: Tensor | None) -> None:
    """Check that arrays hold neither an infinity nor a NaN; looks at every number, and waits for it.

    Raises
    ------
    NumericalError
        Names the first array that does, and the place.
    """
    for name, tensor in arrays.items():
        if tensor is None or bool(tensor.isfinite().all()):
            continue
        places = (~tensor.isfinite()).nonzero().tolist()
        where = f"{name}{places[0]}" if tensor.ndim else name
        raise NumericalError(
            f"{where} is {tensor[tuple(places[0])].item()} ({describe(tensor)}, not finite in {len(places)} "
            f"of {tensor.numel()} places): expected finite numbers; look at what comes before it, such as "
            "rewards, observations or a learning rate that is too large"
        )


def check_movable(name: str, tensor: Tensor, leading: int) -> None:
    """Check that the items behind the first `leading` axes are dense and of a dtype that can be moved."""
    if tensor.dtype not in MOVABLE_DTYPES:
        raise SpecError(
            f"{name} is {describe(tensor)}: expected a bool, integer or floating dtype; convert it"
        )
    if not (tensor.is_contiguous() or _dense(tensor, leading)):
        _raise_strides(name, tensor, leading)


def check_tables(name: str, tables: Sequence[Tensor], leading: int, axes: str) -> None:
    """Check arrays that are indexed together: same device and leading axes, movable items."""
    head = tables[0]
    device, shape = head.device, head.shape[:leading]
    for i, table in enumerate(tables):
        if table.ndim < leading:
            check_rank(f"{name}[{i}]", table, leading, axes)
        if table.shape[:leading] != shape:
            raise SpecError(
                f"{name}[{i}] is {describe(table)}: expected its first {leading} axes to be {list(shape)} "
                f"as those of {name}[0], {axes}"
            )
        if table.device != device:
            raise SpecError(
                f"{name}[{i}] is {describe(table)}: expected it on {device} as {name}[0]; move it"
            )
        if table.dtype not in MOVABLE_DTYPES or not table.is_contiguous():
            check_movable(f"{name}[{i}]", table, leading)


def check_batch(
    name: str,
    batch: Sequence[Tensor],
    shape: Sequence[int],
    tables: Sequence[Tensor],
    tables_name: str,
    leading: int,
    axes: str,
) -> None:
    """Check arrays that pair with tables: `shape`, then a table's item shape; its dtype and device.

    `leading` is the number of the tables' axes that are indexed.
    """
    if len(batch) != len(tables):
        raise SpecError(
            f"{name} has {len(batch)} tensors: expected {len(tables)}, one for each of {tables_name}"
        )
    for i, (tensor, table) in enumerate(zip(batch, tables, strict=True)):
        expected = (*shape, *table.shape[leading:])
        if not (tensor.dtype is table.dtype and tensor.shape == expected and tensor.is_contiguous()):
            words = f"{axes} to go with {tables_name}[{i}]"
            check_array(f"{name}[{i}]", tensor, expected, table.dtype, table.device, words, len(shape))
        elif tensor.device != table.device:
            raise SpecError(
                f"{name}[{i}] is {describe(tensor)}: expected it on {table.device} "
                f"as {tables_name}[{i}]; move it"
            )


def check_in_range(name: str, index: Tensor, position: int, size: int) -> None:
    """Raise for the `position` in an index vector that a kernel found out of range; negative: none."""
    if position >= 0:
        raise SpecError(
            f"{name}[{position}] is {int(index[position])}: expected 0 <= {name}[{position}] < {size}; "
            "nothing was written"
        )


def _dense(tensor: Tensor, leading: int) -> bool:
    """Whether the axes after the first `leading` ones are one run without gaps."""
    run = 1
    for axis in reversed(range(leading, tensor.ndim)):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != run:
            return False
        run *= tensor.shape[axis]
    return True


def _raise_strides(name: str, tensor: Tensor, leading: int) -> None:
    behind = f"behind the first {leading} axes" if leading else "in all axes"
    raise SpecError(
        f"{name} ({describe(tensor)}) has strides {list(tensor.stride())}: expected it to be contiguous "
        f"{behind}; call .contiguous() on it"
    )


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

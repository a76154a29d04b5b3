"""Core states of all environments: rows of a few tables, gathered for a batch and scattered back.

A recurrent core keeps its state in tables ``[N, ...]``, one row an environment and one table a state
tensor (an LSTM has two; a frame stack is a uint8 one). Inference gathers the rows of its batch, zeroed
where an episode begins, as the initial state of every core is zero, and writes the new state back.
All tables are moved in one pass over bytes, whatever their dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels import checks
from seedflow.kernels.jit import copy_bytes, cpu_kernel, first_outside, zero_bytes
from seedflow.kernels.registry import define, register, twin

define("recurrent_gather", "Tensor[] tables, Tensor rows, Tensor first, Tensor(a!)[] out")
define("recurrent_scatter", "Tensor(a!)[] tables, Tensor rows, Tensor[] values")


def recurrent_gather(
    tables: Sequence[Tensor], rows: Tensor, first: Tensor, out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Copy rows of the state tables into a batch; zeros where an episode begins.

    Parameters
    ----------
    tables
        State tables ``[N, ...]`` of any dtypes; none at all is fine.
    rows
        Row of each batch entry, int64 ``[B]``.
    first
        Whether the entry's observation begins an episode, bool ``[B]``: its state is then zero.
    out
        Tensors ``[B, ...]`` to write to, one for each table; they may not overlap the tables.

    Returns
    -------
    list of Tensor
        `out`, or new tensors. The tables themselves are not changed.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a row is out of range.

    Examples
    --------
    >>> table = torch.arange(8.0).reshape(4, 2)
    >>> recurrent_gather([table], torch.tensor([3, 1]), torch.tensor([False, True]))[0].tolist()
    [[6.0, 7.0], [0.0, 0.0]]
    """
    if not tables:
        return []
    checks.check_tables("tables", tables, 1, "[N, ...]")
    device = tables[0].device
    size = (rows.numel(),)
    checks.check_array("rows", rows, size, torch.int64, device, "[B]")
    checks.check_array("first", first, size, torch.bool, device, "[B] as rows")
    if out is None:
        out = [table.new_empty((*size, *table.shape[1:])) for table in tables]
    else:
        checks.check_batch("out", out, size, tables, "tables", 1, "[B, ...]")
    twin("recurrent_gather", device.type)(tables, rows, first, out)
    return list(out)


def recurrent_scatter(tables: Sequence[Tensor], rows: Tensor, values: Sequence[Tensor]) -> None:
    """Copy a batch of states into rows of the tables, in place.

    Parameters
    ----------
    tables
        State tables ``[N, ...]`` of any dtypes, changed in place.
    rows
        Row of each batch entry, int64 ``[B]``. A row that comes twice keeps the later entry on CPU and
        either of them elsewhere.
    values
        The new states ``[B, ...]``, one tensor for each table and of its dtype.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a row is out of range; nothing is written
        then.
    """
    size = (rows.numel(),)
    checks.check_batch("values", values, size, tables, "tables", 1, "[B, ...]")
    if not tables:
        return
    checks.check_tables("tables", tables, 1, "[N, ...]")
    device = tables[0].device
    checks.check_array("rows", rows, size, torch.int64, device, "[B]")
    twin("recurrent_scatter", device.type)(tables, rows, values)


@register("recurrent_gather", "torch")
def _gather_torch(tables: Sequence[Tensor], rows: Tensor, first: Tensor, out: Sequence[Tensor]) -> None:
    for table, batch in zip(tables, out, strict=True):
        torch.index_select(table.detach(), 0, rows, out=batch)
        batch.masked_fill_(first.view(-1, *[1] * (batch.ndim - 1)), 0)


@register("recurrent_scatter", "torch")
def _scatter_torch(tables: Sequence[Tensor], rows: Tensor, values: Sequence[Tensor]) -> None:
    for table, batch in zip(tables, values, strict=True):
        table.index_copy_(0, rows, batch.detach())


@register("recurrent_gather", "cpu")
def _gather_cpu(tables: Sequence[Tensor], rows: Tensor, first: Tensor, out: Sequence[Tensor]) -> None:
    size = tables[0].shape[0]
    outside = _gather(_moves(tables, out), rows.numpy(), first.numpy(), size)
    checks.check_in_range("rows", rows, outside, size)


@register("recurrent_scatter", "cpu")
def _scatter_cpu(tables: Sequence[Tensor], rows: Tensor, values: Sequence[Tensor]) -> None:
    size = tables[0].shape[0]
    outside = _scatter(_moves(tables, values), rows.numpy(), size)
    checks.check_in_range("rows", rows, outside, size)


def _moves(tables: Sequence[Tensor], batches: Sequence[Tensor]) -> np.ndarray:
    """Describe what to move: table and batch address, their row strides, and a row's size, in bytes."""
    moves = []
    for table, batch in zip(tables, batches, strict=True):
        item = table.element_size()
        moves.append(
            (
                table.data_ptr(),
                table.stride(0) * item,
                batch.data_ptr(),
                batch.stride(0) * item,
                math.prod(table.shape[1:]) * item,
            )
        )
    return np.array(moves, np.int64)


@cpu_kernel
def _gather(moves: np.ndarray, rows: np.ndarray, first: np.ndarray, size: int) -> int:
    outside = first_outside(rows, size)
    if outside >= 0:
        return outside
    for i in range(moves.shape[0]):
        table, table_stride, batch, batch_stride, count = moves[i]
        for b in range(rows.shape[0]):
            if first[b]:
                zero_bytes(batch + b * batch_stride, count)
            else:
                copy_bytes(batch + b * batch_stride, table + rows[b] * table_stride, count)
    return -1


@cpu_kernel
def _scatter(moves: np.ndarray, rows: np.ndarray, size: int) -> int:
    outside = first_outside(rows, size)
    if outside >= 0:
        return outside
    for i in range(moves.shape[0]):
        table, table_stride, batch, batch_stride, count = moves[i]
        for b in range(rows.shape[0]):
            copy_bytes(table + rows[b] * table_stride, batch + b * batch_stride, count)
    return -1

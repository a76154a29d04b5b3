"""Rows of a slab: arrays of blocks that others write to, of which a batch takes some rows.

A *field* is an array ``[N, R, ...]``: N blocks of R rows. Where a batch is on a GPU, the fields may be in the
host's memory, pinned and mapped: the GPU then reads the rows over the bus, without a copy on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.jit import copy_bytes, cpu_kernel, first_outside
from seedflow.kernels.registry import define, register, twin

define("slab_gather", "Tensor[] fields, Tensor blocks, Tensor rows, Tensor(a!)[] out")


def slab_gather(
    fields: Sequence[Tensor], blocks: Tensor, rows: Tensor, out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Copy rows out of their blocks into a batch.

    Parameters
    ----------
    fields
        Arrays ``[N, R, ...]`` of any dtypes; only an item's own axes have to be contiguous. On the batch's
        device, or, where that is a GPU, in pinned memory.
    blocks, rows
        Block and row within it of each batch entry, int64 ``[B]``.
    out
        Tensors ``[B, ...]`` to write to, one for each field.

    Returns
    -------
    list of Tensor
        `out`, or new tensors.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a block or row is out of range; nothing is
        written then.

    Examples
    --------
    >>> rewards = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> slab_gather([rewards], torch.tensor([1, 0]), torch.tensor([0, 1]))[0].tolist()
    [3.0, 2.0]
    """
    if not fields:
        return []
    checks.check_tables("fields", fields, 2, "[N, R, ...]")
    device, size = blocks.device, (blocks.numel(),)
    checks.check_array("blocks", blocks, size, torch.int64, device, "[B]")
    checks.check_array("rows", rows, size, torch.int64, device, "[B] as blocks")
    if fields[0].device != device:
        _check_pinned(fields, device)
    if out is None:
        out = [field.new_empty((*size, *field.shape[2:]), device=device) for field in fields]
    elif len(out) != len(fields):
        raise SpecError(f"out has {len(out)} tensors: expected {len(fields)}, one for each of fields")
    else:
        for i, (batch, field) in enumerate(zip(out, fields, strict=True)):
            shape = (*size, *field.shape[2:])
            axes = f"[B, ...] to go with fields[{i}]"
            checks.check_array(f"out[{i}]", batch, shape, field.dtype, device, axes)
    twin("slab_gather", device.type)(fields, blocks, rows, out)
    return list(out)


def _check_pinned(fields: Sequence[Tensor], device: torch.device) -> None:
    for i, field in enumerate(fields):
        if device.type != "cuda" or not field.is_pinned():
            raise SpecError(
                f"fields[{i}] is {checks.describe(field)}: expected it on {device} as blocks, or in pinned "
                "memory for a GPU; move or pin it"
            )


@register("slab_gather", "torch")
def _gather_torch(fields: Sequence[Tensor], blocks: Tensor, rows: Tensor, out: Sequence[Tensor]) -> None:
    for field, batch in zip(fields, out, strict=True):
        batch.copy_(field.detach()[blocks.to(field.device), rows.to(field.device)])


@register("slab_gather", "cpu")
def _gather_cpu(fields: Sequence[Tensor], blocks: Tensor, rows: Tensor, out: Sequence[Tensor]) -> None:
    num_blocks, num_rows = fields[0].shape[:2]
    moves = []
    for field, batch in zip(fields, out, strict=True):
        item = field.element_size()
        block_stride, row_stride = field.stride()[:2]
        count = math.prod(field.shape[2:]) * item
        moves.append((field.data_ptr(), block_stride * item, row_stride * item, batch.data_ptr(), count))
    bad_block, bad_row = _gather(
        np.array(moves, np.int64), blocks.numpy(), rows.numpy(), num_blocks, num_rows
    )
    checks.check_in_range("blocks", blocks, bad_block, num_blocks)
    checks.check_in_range("rows", rows, bad_row, num_rows)


@cpu_kernel
def _gather(
    moves: np.ndarray, blocks: np.ndarray, rows: np.ndarray, num_blocks: int, num_rows: int
) -> tuple[int, int]:
    bad_block, bad_row = first_outside(blocks, num_blocks), first_outside(rows, num_rows)
    if bad_block >= 0 or bad_row >= 0:
        return bad_block, bad_row
    for i in range(moves.shape[0]):
        field, block_stride, row_stride, batch, count = moves[i]
        for b in range(blocks.shape[0]):
            copy_bytes(batch + b * count, field + blocks[b] * block_stride + rows[b] * row_stride, count)
    return -1, -1

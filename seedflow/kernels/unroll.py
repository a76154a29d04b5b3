"""Unroll slots: written one index at a time, read as a time-major batch.

A *field* is an array ``[S, T + 1, ...]``: S slots, each holding the T + 1 indices of one unroll. There
is one field for the observation, one for the reward, one for the action and so on, of any dtypes.
Inference appends an index to the slot of every environment in its batch; training gathers slots whose
unrolls are complete. All fields are moved in one pass over bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels import checks
from seedflow.kernels.jit import copy_bytes, cpu_kernel, first_outside
from seedflow.kernels.registry import define, register, twin

define("unroll_append", "Tensor(a!)[] fields, Tensor slots, Tensor times, Tensor[] values")
define("unroll_gather", "Tensor[] fields, Tensor slots, Tensor(a!)[] out")


def unroll_append(fields: Sequence[Tensor], slots: Tensor, times: Tensor, values: Sequence[Tensor]) -> None:
    """Write one index of n unrolls into their slots, in place.

    Parameters
    ----------
    fields
        Slot arrays ``[S, T + 1, ...]`` of any dtypes, changed in place. They may be views into shared
        memory: only an item's own axes have to be contiguous.
    slots, times
        Slot and index within the unroll of each entry, int64 ``[n]``. A pair that comes twice keeps the
        later entry on CPU and either of them elsewhere.
    values
        What to write, ``[n, ...]``, one tensor for each field and of its dtype.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a slot or time is out of range; nothing is
        written then.

    Examples
    --------
    >>> rewards = torch.zeros(2, 3)
    >>> unroll_append([rewards], torch.tensor([1, 0]), torch.tensor([2, 0]), [torch.tensor([5.0, 7.0])])
    >>> rewards.tolist()
    [[7.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    """
    size = (slots.numel(),)
    checks.check_batch("values", values, size, fields, "fields", 2, "[n, ...]")
    if not fields:
        return
    checks.check_tables("fields", fields, 2, "[S, T + 1, ...]")
    device = fields[0].device
    checks.check_array("slots", slots, size, torch.int64, device, "[n]")
    checks.check_array("times", times, size, torch.int64, device, "[n] as slots")
    twin("unroll_append", device.type)(fields, slots, times, values)


def unroll_gather(
    fields: Sequence[Tensor], slots: Tensor, out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Copy whole unrolls out of their slots into a time-major batch.

    Parameters
    ----------
    fields
        Slot arrays ``[S, T + 1, ...]`` of any dtypes.
    slots
        Slot of each batch entry, int64 ``[B]``.
    out
        Tensors ``[T + 1, B, ...]`` to write to, one for each field; they may not overlap the fields.

    Returns
    -------
    list of Tensor
        `out`, or new tensors.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a slot is out of range.

    Examples
    --------
    >>> unroll_gather([torch.tensor([[1, 2], [3, 4], [5, 6]])], torch.tensor([2, 0]))[0].tolist()
    [[5, 1], [6, 2]]
    """
    if not fields:
        return []
    checks.check_tables("fields", fields, 2, "[S, T + 1, ...]")
    device = fields[0].device
    checks.check_array("slots", slots, (slots.numel(),), torch.int64, device, "[B]")
    shape = (fields[0].shape[1], slots.numel())
    if out is None:
        out = [field.new_empty((*shape, *field.shape[2:])) for field in fields]
    else:
        checks.check_batch("out", out, shape, fields, "fields", 2, "[T + 1, B, ...]")
    twin("unroll_gather", device.type)(fields, slots, out)
    return list(out)


@register("unroll_append", "torch")
def _append_torch(fields: Sequence[Tensor], slots: Tensor, times: Tensor, values: Sequence[Tensor]) -> None:
    for field, value in zip(fields, values, strict=True):
        field.index_put_((slots, times), value.detach())


@register("unroll_gather", "torch")
def _gather_torch(fields: Sequence[Tensor], slots: Tensor, out: Sequence[Tensor]) -> None:
    for field, batch in zip(fields, out, strict=True):
        torch.index_select(field.detach().transpose(0, 1), 1, slots, out=batch)


@register("unroll_append", "cpu")
def _append_cpu(fields: Sequence[Tensor], slots: Tensor, times: Tensor, values: Sequence[Tensor]) -> None:
    num_slots, num_times = fields[0].shape[:2]
    moves = []
    for field, value in zip(fields, values, strict=True):
        item = field.element_size()
        slot_stride, time_stride = field.stride()[:2]
        moves.append(
            (
                field.data_ptr(),
                slot_stride * item,
                time_stride * item,
                value.data_ptr(),
                value.stride(0) * item,
                math.prod(field.shape[2:]) * item,
            )
        )
    bad_slot, bad_time = _append(
        np.array(moves, np.int64), slots.numpy(), times.numpy(), num_slots, num_times
    )
    checks.check_in_range("slots", slots, bad_slot, num_slots)
    checks.check_in_range("times", times, bad_time, num_times)


@register("unroll_gather", "cpu")
def _gather_cpu(fields: Sequence[Tensor], slots: Tensor, out: Sequence[Tensor]) -> None:
    num_slots, num_times = fields[0].shape[:2]
    moves = []
    for field, batch in zip(fields, out, strict=True):
        item = field.element_size()
        slot_stride, time_stride = field.stride()[:2]
        batch_time_stride, batch_stride = batch.stride()[:2]
        moves.append(
            (
                field.data_ptr(),
                slot_stride * item,
                time_stride * item,
                batch.data_ptr(),
                batch_time_stride * item,
                batch_stride * item,
                math.prod(field.shape[2:]) * item,
            )
        )
    outside = _gather(np.array(moves, np.int64), slots.numpy(), num_slots, num_times)
    checks.check_in_range("slots", slots, outside, num_slots)


@cpu_kernel
def _append(
    moves: np.ndarray, slots: np.ndarray, times: np.ndarray, num_slots: int, num_times: int
) -> tuple[int, int]:
    bad_slot, bad_time = first_outside(slots, num_slots), first_outside(times, num_times)
    if bad_slot >= 0 or bad_time >= 0:
        return bad_slot, bad_time
    for i in range(moves.shape[0]):
        field, slot_stride, time_stride, value, value_stride, count = moves[i]
        for b in range(slots.shape[0]):
            to = field + slots[b] * slot_stride + times[b] * time_stride
            copy_bytes(to, value + b * value_stride, count)
    return -1, -1


@cpu_kernel
def _gather(moves: np.ndarray, slots: np.ndarray, num_slots: int, num_times: int) -> int:
    outside = first_outside(slots, num_slots)
    if outside >= 0:
        return outside
    for i in range(moves.shape[0]):
        field, slot_stride, time_stride, batch, batch_time_stride, batch_stride, count = moves[i]
        for b in range(slots.shape[0]):  # a slot at a time, read from its beginning to its end
            for t in range(num_times):
                to = batch + t * batch_time_stride + b * batch_stride
                copy_bytes(to, field + slots[b] * slot_stride + t * time_stride, count)
    return -1

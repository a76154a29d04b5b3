"""CUDA twins of what moves rows: core states, unrolls and the slab.

Up to eight tables of any dtypes move in one launch. A table is cut into words: of 8 bytes where its
items and addresses allow it, else of single bytes, as with a vector of flags, so that a call takes two
launches at most for every eight tables. Words are dealt out to threads in the order of the batch; a
table has blocks of its own. An index out of range moves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from seedflow.kernels.cuda.arguments import Numbers, rows, unrolls, vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.registry import register

TABLES = 8  # of one launch
THREADS = 256
WORDS = {8: "int64", 1: "uint8"}

Describe = Callable[[Tensor, int], Numbers]


def grid_of_blocks(blocks: int) -> tuple[Grid, Grid]:
    """One block for every 256 words of a table."""
    return (blocks, 1, 1), (THREADS, 1, 1)


@device_function
def table_of_block(ends: tuple[int, ...]) -> Any:
    """The table that this block works on; `ends` are one past the tables' last blocks."""
    table = 0
    while cuda.blockIdx.x >= ends[table]:
        table += 1
    return table


@device_function
def word_of_thread(ends: tuple[int, ...], table: int) -> Any:
    """The word of that table that this thread moves."""
    first = ends[table - 1] if table > 0 else 0
    return (cuda.blockIdx.x - first) * THREADS + cuda.threadIdx.x


@kernel
def _gather_rows(
    tables: tuple[np.ndarray, ...],
    batches: tuple[np.ndarray, ...],
    rows: np.ndarray,
    first: np.ndarray,
    ends: tuple[int, ...],
) -> None:
    i = table_of_block(ends)
    table, batch = tables[i], batches[i]
    words = batch.shape[1]
    n = word_of_thread(ends, i)
    b, w = n // words, n % words
    if b < rows.size:
        row = rows[b]
        if first[b]:
            batch[b, w] = 0
        elif 0 <= row < table.shape[0]:
            batch[b, w] = table[row, w]


@kernel
def _scatter_rows(
    tables: tuple[np.ndarray, ...],
    batches: tuple[np.ndarray, ...],
    rows: np.ndarray,
    ends: tuple[int, ...],
) -> None:
    i = table_of_block(ends)
    table, batch = tables[i], batches[i]
    words = batch.shape[1]
    n = word_of_thread(ends, i)
    b, w = n // words, n % words
    if b < rows.size:
        row = rows[b]
        if 0 <= row < table.shape[0]:
            table[row, w] = batch[b, w]


@kernel
def _append(
    fields: tuple[np.ndarray, ...],
    batches: tuple[np.ndarray, ...],
    slots: np.ndarray,
    times: np.ndarray,
    ends: tuple[int, ...],
) -> None:
    i = table_of_block(ends)
    field, batch = fields[i], batches[i]
    words = batch.shape[1]
    n = word_of_thread(ends, i)
    b, w = n // words, n % words
    if b < slots.size:
        slot, time = slots[b], times[b]
        if 0 <= slot < field.shape[0] and 0 <= time < field.shape[1]:
            field[slot, time, w] = batch[b, w]


@kernel
def _gather_unrolls(
    fields: tuple[np.ndarray, ...],
    batches: tuple[np.ndarray, ...],
    slots: np.ndarray,
    ends: tuple[int, ...],
) -> None:
    i = table_of_block(ends)
    field, batch = fields[i], batches[i]
    words = batch.shape[2]
    n = word_of_thread(ends, i)
    item, w = n // words, n % words
    t, b = item // slots.size, item % slots.size
    if t < batch.shape[0]:
        slot = slots[b]
        if 0 <= slot < field.shape[0]:
            batch[t, b, w] = field[slot, t, w]


@kernel
def _gather_slab(
    fields: tuple[np.ndarray, ...],
    batches: tuple[np.ndarray, ...],
    blocks: np.ndarray,
    rows: np.ndarray,
    ends: tuple[int, ...],
) -> None:
    i = table_of_block(ends)
    field, batch = fields[i], batches[i]
    words = batch.shape[1]
    n = word_of_thread(ends, i)
    b, w = n // words, n % words
    if b < blocks.size:
        block, row = blocks[b], rows[b]
        if 0 <= block < field.shape[0] and 0 <= row < field.shape[1]:
            batch[b, w] = field[block, row, w]


def _kernels(operation: str, function: object, axes: str, *indices: str) -> dict[int, Kernel]:
    """The kernel for words of each size; `axes` are those of the tables and of the batches."""
    tables, batches = axes.split()
    return {
        word: Kernel(
            operation,
            function,
            [f"{TABLES} {dtype}{tables}", f"{TABLES} {dtype}{batches}", *indices, f"{TABLES} int32"],
            grid_of_blocks,
            registers=48,
        )
        for word, dtype in WORDS.items()
    }


gather_rows = _kernels("recurrent_gather", _gather_rows, "[:,:] [:,:]", "int64[]", "uint8[]")
scatter_rows = _kernels("recurrent_scatter", _scatter_rows, "[:,:] [:,:]", "int64[]")
append = _kernels("unroll_append", _append, "[:,:,:] [:,:]", "int64[]", "int64[]")
gather_unrolls = _kernels("unroll_gather", _gather_unrolls, "[:,:,:] [:,:,:]", "int64[]")
gather_slab = _kernels("slab_gather", _gather_slab, "[:,:,:] [:,:]", "int64[]", "int64[]")


def _move(
    kernels: dict[int, Kernel],
    tables: Sequence[Tensor],
    describe_table: Describe,
    batches: Sequence[Tensor],
    describe_batch: Describe,
    leading: int,
    *indices: Numbers,
) -> None:
    """Launch a move of all tables; a batch's first `leading` axes are indexed."""
    device = batches[0].device  # the tables of a slab are the host's
    for word, pairs in _grouped(tables, batches, leading):
        table_numbers: list[float] = []
        batch_numbers: list[float] = []
        ends: list[int] = []
        for table, batch in pairs:
            table_numbers += describe_table(table, word)
            batch_numbers += describe_batch(batch, word)
            words = batch.numel() * batch.element_size() // word
            ends.append((ends[-1] if ends else 0) + -(-words // THREADS))
        unused = TABLES - len(pairs)
        table_numbers += table_numbers[: len(table_numbers) // len(pairs)] * unused
        batch_numbers += batch_numbers[: len(batch_numbers) // len(pairs)] * unused
        kernels[word](
            device,
            (ends[-1],),
            *table_numbers,
            *batch_numbers,
            *(number for index in indices for number in index),
            *ends,
            *ends[-1:] * unused,
        )


def _grouped(
    tables: Sequence[Tensor], batches: Sequence[Tensor], leading: int
) -> Iterator[tuple[int, list[tuple[Tensor, Tensor]]]]:
    """Pairs of table and batch, at most eight at a time, with the word size that they have in common."""
    groups: dict[int, list[tuple[Tensor, Tensor]]] = {word: [] for word in WORDS}
    for table, batch in zip(tables, batches, strict=True):
        if batch.numel() == 0:
            continue
        size = table.element_size()
        bits = math.prod(batch.shape[leading:]) * size | table.data_ptr() | batch.data_ptr()
        for tensor in (table, batch):
            for stride in tensor.stride()[: tensor.ndim - batch.ndim + leading]:
                bits |= stride * size
        groups[1 if bits % 8 else 8].append((table, batch))
    for word, pairs in groups.items():
        for start in range(0, len(pairs), TABLES):
            yield word, pairs[start : start + TABLES]


@register("recurrent_gather", "cuda")
def _recurrent_gather_cuda(
    tables: Sequence[Tensor], rows_: Tensor, first: Tensor, out: Sequence[Tensor]
) -> None:
    _move(gather_rows, tables, rows, out, rows, 1, vector(rows_), vector(first))


@register("recurrent_scatter", "cuda")
def _recurrent_scatter_cuda(tables: Sequence[Tensor], rows_: Tensor, values: Sequence[Tensor]) -> None:
    _move(scatter_rows, tables, rows, values, rows, 1, vector(rows_))


@register("unroll_append", "cuda")
def _unroll_append_cuda(
    fields: Sequence[Tensor], slots: Tensor, times: Tensor, values: Sequence[Tensor]
) -> None:
    _move(append, fields, unrolls, values, rows, 1, vector(slots), vector(times))


@register("unroll_gather", "cuda")
def _unroll_gather_cuda(fields: Sequence[Tensor], slots: Tensor, out: Sequence[Tensor]) -> None:
    _move(gather_unrolls, fields, unrolls, out, unrolls, 2, vector(slots))


@register("slab_gather", "cuda")
def _slab_gather_cuda(fields: Sequence[Tensor], blocks: Tensor, rows_: Tensor, out: Sequence[Tensor]) -> None:
    _move(gather_slab, fields, unrolls, out, rows, 1, vector(blocks), vector(rows_))

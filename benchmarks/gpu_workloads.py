"""What the kernels are measured on: typical inputs of a learner, and large ones.

A `Workload` is one twin's arguments with the bytes that it has to read and write, each once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seedflow import kernels

CLIPS = (1.0, 1.0, 1.0, 0.95)

Arguments = tuple[Any, ...]


@dataclass(frozen=True)
class Workload:
    """A twin's arguments, made by `make`, and the bytes that one call has to move.

    `compiled` is false where torch's stand-in loops over too many steps to be compiled in passing.
    """

    operation: str
    shape: str
    moved: int
    make: Callable[[Maker], Arguments]
    compiled: bool = True

    def __str__(self) -> str:
        return f"{self.operation} {self.shape}"


class Maker:
    """Makes random tensors on a device, the same ones from the same seed."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.rand(shape, generator=self._generator, device=self.device, dtype=dtype)

    def flags(self, share: float, *shape: int) -> Tensor:
        return self.uniform(*shape) < share

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(high, shape, generator=self._generator, device=self.device, dtype=dtype)

    def distinct(self, high: int, count: int) -> Tensor:
        return torch.randperm(high, generator=self._generator, device=self.device)[:count]

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=dtype)

    def transitions(self, steps: int, batch: int) -> tuple[Tensor, Tensor]:
        """Discounts, and which transitions are any; some of these terminate an episode."""
        valid = ~self.flags(0.02, steps, batch)
        return 0.99 * (valid & ~self.flags(0.02, steps, batch)), valid


def vtrace(steps: int, batch: int) -> Workload:
    """Four inputs and a mask, two results."""
    size = steps * batch

    def make(new: Maker) -> Arguments:
        discounts, valid = new.transitions(steps, batch)
        inputs = (new.normal(steps, batch), new.normal(steps, batch), discounts)
        results = (new.empty(steps, batch), new.empty(steps, batch))
        return (*inputs, new.normal(steps + 1, batch), valid, *CLIPS, *results)

    moved = 4 * (3 * size + size + batch) + size + 4 * 2 * size
    return Workload("vtrace", f"T{steps} B{batch}", moved, make, compiled=steps <= 32)


def vtrace_loss(steps: int, batch: int, actions: int, dtype: torch.dtype = torch.float32) -> Workload:
    """Logits in, their gradient out, and one number per index of a few more."""
    size, item = steps * batch, dtype.itemsize

    def make(new: Maker) -> Arguments:
        discounts, valid = new.transitions(steps, batch)
        return (
            new.normal(steps + 1, batch, actions).to(dtype),
            new.normal(steps + 1, batch),
            new.integers(actions, steps, batch),
            -2.0 * new.uniform(steps, batch),
            new.normal(steps, batch),
            discounts,
            valid,
            (actions,),
            *CLIPS,
            0.5,
            0.01,
            new.empty(),
            new.empty(len(kernels.VTRACE_LOSS_TERMS)),
            new.empty(steps + 1, batch, actions).to(dtype),
            new.empty(steps + 1, batch),
            new.empty(dtype=torch.int32) + 1,
        )

    read = size * actions * item + 4 * (size + batch) + 8 * size + 4 * 3 * size + size
    written = (size + batch) * actions * item + 4 * (size + batch)
    kind = "" if dtype is torch.float32 else " bf16"
    shape = f"T{steps} B{batch} A{actions}{kind}"
    return Workload("vtrace_loss", shape, read + written, make, compiled=steps <= 32)


def r2d2_loss(indices: int, batch: int, actions: int, burn_in: int) -> Workload:
    """Q-values of two networks in, a gradient out."""
    size, trained = indices * batch, (indices - burn_in) * batch

    def make(new: Maker) -> Arguments:
        ended = new.flags(0.01, indices, batch)
        return (
            new.normal(indices, batch, actions),
            new.normal(indices, batch, actions),
            new.integers(actions, indices, batch),
            new.normal(indices, batch),
            ended,
            new.flags(0.005, indices, batch),
            torch.cat([new.flags(0.5, 1, batch), ended[:-1]]),
            new.uniform(batch),
            burn_in,
            5,
            0.997,
            1e-3,
            0.9,
            new.empty(),
            new.empty(len(kernels.R2D2_LOSS_TERMS)),
            new.empty(batch),
            new.empty(indices, batch),
            new.empty(indices, batch, actions),
            new.empty(dtype=torch.int32) + 1,
        )

    read = 4 * 2 * trained * actions + (8 + 4 + 3) * trained + 4 * batch
    written = 4 * size * actions + 4 * size + 4 * batch
    return Workload("r2d2_loss", f"L{indices} B{batch} A{actions}", read + written, make)


def gae(steps: int, batch: int) -> Workload:
    """Three inputs and a mask, two results."""
    size = steps * batch

    def make(new: Maker) -> Arguments:
        discounts, valid = new.transitions(steps, batch)
        results = (new.empty(steps, batch), new.empty(steps, batch))
        return (new.normal(steps, batch), discounts, new.normal(steps + 1, batch), valid, 0.95, *results)

    moved = 4 * (2 * size + size + batch) + size + 4 * 2 * size
    return Workload("gae", f"T{steps} B{batch}", moved, make, compiled=steps <= 32)


def n_step(steps: int, batch: int, n: int) -> Workload:
    """Three inputs and a mask, one result."""
    size = steps * batch

    def make(new: Maker) -> Arguments:
        (discounts, valid), values = new.transitions(steps, batch), new.normal(steps + 1, batch)
        return (new.normal(steps, batch), discounts, values, valid, n, new.empty(steps, batch))

    return Workload("n_step", f"T{steps} B{batch} n{n}", 4 * (3 * size + batch) + size + 4 * size, make)


def recurrent(operation: str, rows: int, batch: int, width: int) -> Workload:
    """The two tables of an LSTM."""

    def make(new: Maker) -> Arguments:
        tables, index = [new.normal(rows, width) for _ in range(2)], new.distinct(rows, batch)
        batches = [new.normal(batch, width) for _ in range(2)]
        flags = (new.flags(0.01, batch),) if operation == "recurrent_gather" else ()
        return (tables, index, *flags, batches)

    moved = 2 * 2 * 4 * batch * width + 8 * batch + (batch if operation == "recurrent_gather" else 0)
    return Workload(operation, f"N{rows} B{batch} H{width}", moved, make)


SCALARS = (torch.float32, torch.bool, torch.bool, torch.bool, torch.int64, torch.float32)
"""Beside the frame: reward, three flags, action and log-probability of one index."""

ITEM = 84 * 84 + sum(dtype.itemsize for dtype in SCALARS)


def _fields(new: Maker, *leading: int) -> list[Tensor]:
    frames = new.integers(256, *leading, 84, 84, dtype=torch.uint8)
    return [frames, *(new.empty(*leading, dtype=dtype) for dtype in SCALARS)]


def unroll_append(slots: int, batch: int, steps: int) -> Workload:
    """One index of Atari frames and what goes with it."""

    def make(new: Maker) -> Arguments:
        index, times = new.distinct(slots, batch), new.integers(steps + 1, batch)
        return (_fields(new, slots, steps + 1), index, times, _fields(new, batch))

    return Workload("unroll_append", f"B{batch} 84x84", 2 * batch * ITEM + 16 * batch, make)


def unroll_gather(slots: int, batch: int, steps: int) -> Workload:
    """Whole unrolls of the same."""

    def make(new: Maker) -> Arguments:
        index = new.distinct(slots, batch)
        return (_fields(new, slots, steps + 1), index, _fields(new, steps + 1, batch))

    moved = 2 * batch * (steps + 1) * ITEM + 8 * batch
    return Workload("unroll_gather", f"T{steps} B{batch} 84x84", moved, make)


def slab_gather(blocks: int, rows: int, batch: int) -> Workload:
    """Rows of Atari frames and what goes with them, from the GPU's own memory."""

    def make(new: Maker) -> Arguments:
        index, of_block = new.integers(blocks, batch), new.integers(rows, batch)
        return (_fields(new, blocks, rows), index, of_block, _fields(new, batch))

    return Workload("slab_gather", f"B{batch} 84x84", 2 * batch * ITEM + 16 * batch, make)


def sample_categorical(rows: int, actions: int) -> Workload:
    """Logits and uniform numbers in, three numbers a row out."""

    def make(new: Maker) -> Arguments:
        results = (new.empty(rows, dtype=torch.int64), new.empty(rows), new.empty(rows))
        return (new.normal(rows, actions), new.uniform(rows, actions), *results)

    return Workload("sample_categorical", f"B{rows} A{actions}", 8 * rows * actions + 16 * rows, make)


def rmsprop_step(size: int) -> Workload:
    """The gradient read twice, as its norm comes first; parameters and their statistics read and written."""

    def make(new: Maker) -> Arguments:
        tensors = (new.normal(size), new.normal(size), new.uniform(size))
        return (*tensors, 1e-4, 0.99, 1e-3, 40.0, new.empty())

    return Workload("rmsprop_step", f"n{size:.0e}", 4 * (2 + 2 + 2) * size, make)


def adam_step(size: int) -> Workload:
    """The same with two statistics."""

    def make(new: Maker) -> Arguments:
        tensors = (new.normal(size), new.normal(size), new.normal(size), new.uniform(size))
        return (*tensors, 10, 1e-4, 0.9, 0.999, 1e-8, 40.0, new.empty())

    return Workload("adam_step", f"n{size:.0e}", 4 * (2 + 2 + 2 + 2) * size, make)


def _tree(new: Maker, capacity: int) -> Tensor:
    """A tree of a power of two of leaves, level by level."""
    levels = [new.uniform(capacity, dtype=torch.float64) + 0.1]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0].view(-1, 2).sum(1))
    return torch.cat([torch.full_like(levels[0], capacity), *levels])


def sum_tree(operation: str, capacity: int, count: int) -> Workload:
    """A number of each level and its neighbour for every entry."""
    depth = int(math.log2(capacity))

    def make(new: Maker) -> Arguments:
        tree, uniform = _tree(new, capacity), new.uniform(count, dtype=torch.float64)
        if operation == "sum_tree_set":
            return (tree, new.integers(capacity, count), uniform)
        return (tree, uniform, new.empty(count, dtype=torch.int64), new.empty(count, dtype=torch.float64))

    per_entry = 24 * depth + 24 if operation == "sum_tree_set" else 16 * depth + 24
    return Workload(operation, f"2^{depth} K{count}", per_entry * count, make)


WORKLOADS = (
    vtrace(20, 256),
    vtrace(100, 4096),
    vtrace_loss(20, 32, 18),
    vtrace_loss(20, 256, 18),
    vtrace_loss(100, 4096, 18),
    vtrace_loss(100, 4096, 18, torch.bfloat16),
    r2d2_loss(120, 64, 18, 40),
    r2d2_loss(120, 2048, 18, 40),
    gae(20, 256),
    gae(128, 4096),
    n_step(20, 256, 5),
    n_step(128, 4096, 5),
    recurrent("recurrent_gather", 1024, 256, 512),
    recurrent("recurrent_gather", 65_536, 16_384, 512),
    recurrent("recurrent_scatter", 1024, 256, 512),
    recurrent("recurrent_scatter", 65_536, 16_384, 512),
    unroll_append(512, 256, 20),
    unroll_gather(64, 32, 20),
    unroll_gather(512, 256, 20),
    slab_gather(16, 64, 256),
    sample_categorical(256, 18),
    sample_categorical(65_536, 18),
    rmsprop_step(1_600_000),
    rmsprop_step(64_000_000),
    adam_step(1_600_000),
    adam_step(64_000_000),
    sum_tree("sum_tree_set", 1 << 20, 256),
    sum_tree("sum_tree_sample", 1 << 20, 256),
    sum_tree("sum_tree_sample", 1 << 20, 65_536),
)

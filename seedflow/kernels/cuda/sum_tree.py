"""CUDA twins of `sum_tree_set` and `sum_tree_sample`.

One block sets leaves and then recomputes their parents, level by level, with a barrier between levels.
Of entries for one leaf the last counts: while they are sorted out, the leaf's own eight bytes hold the
number of the entry that wins. A thread draws one leaf, walking down from the root.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.registry import register

THREADS = 1024
ENTRIES = 32 * THREADS  # of one launch: a thread notes which of its entries win in the bits of a word
INFINITY = np.inf


def grid_of_one_block(count: int) -> tuple[Grid, Grid]:
    """One block, with a thread for every entry as long as there are enough."""
    return (int(count > 0), 1, 1), (min(THREADS, 32 * -(-count // 32)), 1, 1)


def grid_of_draws(draws: int) -> tuple[Grid, Grid]:
    """A thread for every draw, in small blocks: they wait for memory, not for each other."""
    return (-(-draws // 64), 1, 1), (64, 1, 1)


@device_function
def leaf_of(index: int, value: float, capacity: float, width: int) -> int:
    """The node of a leaf, or 0 for an index or value out of range."""
    return index + width if 0 <= index < capacity and 0.0 <= value < INFINITY else 0


@kernel
def _set(
    tree: np.ndarray, marks: np.ndarray, index: np.ndarray, value: np.ndarray, start: int, stop: int
) -> None:
    capacity, width = tree[0], tree.size // 2
    first, step = start + cuda.threadIdx.x, cuda.blockDim.x
    for k in range(first, stop, step):
        leaf = leaf_of(index[k], value[k], capacity, width)
        if leaf > 0:
            marks[leaf] = -1
    cuda.syncthreads()
    for k in range(first, stop, step):
        leaf = leaf_of(index[k], value[k], capacity, width)
        if leaf > 0:
            cuda.atomic.max(marks, leaf, k)
    cuda.syncthreads()
    wins, bit = 0, 1
    for k in range(first, stop, step):
        leaf = leaf_of(index[k], value[k], capacity, width)
        if leaf > 0 and marks[leaf] == k:
            wins |= bit
        bit <<= 1
    cuda.syncthreads()
    for k in range(first, stop, step):
        if wins & 1:
            tree[index[k] + width] = value[k]
        wins >>= 1
    cuda.syncthreads()
    level = 1
    while width >> level > 0:
        for k in range(first, stop, step):
            node = leaf_of(index[k], value[k], capacity, width) >> level
            if node > 0:
                tree[node] = tree[2 * node] + tree[2 * node + 1]
        cuda.syncthreads()
        level += 1


@kernel
def _sample(tree: np.ndarray, uniform: np.ndarray, index: np.ndarray, value: np.ndarray) -> None:
    k = cuda.grid(1)
    draws, width = uniform.size, tree.size // 2
    if k >= draws:
        return
    position = uniform[k] if uniform[k] > 0.0 else 0.0
    position = position if position < 1.0 else 1.0
    target = (k + position) / draws * tree[1]
    node = 1
    while node < width:
        left, right = tree[2 * node], tree[2 * node + 1]
        if target < left or right == 0.0:
            node = 2 * node
        else:
            node = 2 * node + 1
            target -= left
    index[k] = node - width
    value[k] = tree[node]


set_leaves = Kernel(
    "sum_tree_set",
    _set,
    ["float64[]", "int64[]", "int64[]", "float64[]", "int64", "int64"],
    grid_of_one_block,
    registers=64,
    double=True,
)
sample = Kernel(
    "sum_tree_sample",
    _sample,
    ["float64[]", "float64[]", "int64[]", "float64[]"],
    grid_of_draws,
    registers=40,
    double=True,
)


@register("sum_tree_set", "cuda")
def _sum_tree_set_cuda(tree: Tensor, index: Tensor, value: Tensor) -> None:
    count = index.numel()
    for start in range(0, count, ENTRIES):
        stop = min(start + ENTRIES, count)
        set_leaves(
            tree.device,
            (stop - start,),
            *vector(tree),
            *vector(tree),
            *vector(index),
            *vector(value),
            start,
            stop,
        )


@register("sum_tree_sample", "cuda")
def _sum_tree_sample_cuda(tree: Tensor, uniform: Tensor, index: Tensor, value: Tensor) -> None:
    draws = uniform.numel()
    sample(tree.device, (draws,), *vector(tree), *vector(uniform), *vector(index), *vector(value))

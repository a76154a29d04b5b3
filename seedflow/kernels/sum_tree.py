"""A sum tree: proportional sampling with cheap updates (Schaul et al. 2016, arXiv 1511.05952).

The tree is one float64 vector of 2P numbers, P the capacity rounded up to a power of two. Number 0 holds
the capacity, number 1 the total; node n is the sum of nodes 2n and 2n + 1, and the leaves, numbers P to
2P - 1, are the values themselves. An update recomputes the parents of what it wrote, level by level: as
nothing is ever added to a node, rounding errors do not pile up, and equal leaves make equal trees.

A tree belongs to one thread at a time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.jit import at_address, carray, cpu_kernel, first_outside
from seedflow.kernels.registry import define, register, twin

define("sum_tree_set", "Tensor(a!) tree, Tensor index, Tensor value")
define("sum_tree_sample", "Tensor tree, Tensor uniform, Tensor(a!) index, Tensor(b!) value")


class SumTreeSample(NamedTuple):
    """What was drawn: leaves, int64 ``[K]``, and their values, float64 ``[K]``."""

    leaf: Tensor
    value: Tensor


def sum_tree_new(capacity: int, device: torch.device | str = "cpu") -> Tensor:
    """Make a tree whose leaves are all zero.

    Parameters
    ----------
    capacity
        Number of leaves, at least 1.
    device
        Where the tree lives.

    Returns
    -------
    Tensor
        float64; a checkpoint needs its leaves only, as setting them gives the same tree again.

    Raises
    ------
    SpecError
        When the capacity is not positive.
    """
    if capacity < 1:
        raise SpecError(f"capacity is {capacity}: expected at least 1 leaf")
    size = 2 * _width(capacity)
    if torch.device(device).type == "cpu":
        # numpy asks for huge pages where an array is large; a walk down the tree would else spend a third
        # of its time on finding pages.
        tree = torch.from_numpy(np.zeros(size))
    else:
        tree = torch.zeros(size, dtype=torch.float64, device=device)
    tree[0] = capacity
    return tree


def sum_tree_set(tree: Tensor, index: Tensor, value: Tensor) -> None:
    """Set leaves, in place.

    Parameters
    ----------
    tree
        From `sum_tree_new`.
    index
        Leaves to set, int64 ``[K]``; of one that comes twice the last value counts.
    value
        Their values, float64 ``[K]``, finite and not negative.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) a leaf or value is out of range; nothing is
        written then.

    Examples
    --------
    >>> tree = sum_tree_new(3)
    >>> sum_tree_set(tree, torch.tensor([0, 2, 0]), torch.tensor([9.0, 1.0, 2.0], dtype=torch.float64))
    >>> sum_tree_total(tree)
    3.0
    """
    _check_tree(tree)
    size, device = (index.numel(),), tree.device
    checks.check_array("index", index, size, torch.int64, device, "[K]")
    checks.check_array("value", value, size, torch.float64, device, "[K] as index")
    twin("sum_tree_set", device.type)(tree, index, value)


def sum_tree_sample(tree: Tensor, uniform: Tensor, out: SumTreeSample | None = None) -> SumTreeSample:
    """Draw leaves in proportion to their values, stratified: one draw from each K-th of the total.

    Parameters
    ----------
    tree
        From `sum_tree_new`; not changed.
    uniform
        Random numbers from [0, 1], float64 ``[K]``. Draw k takes the leaf that covers
        ``(k + uniform[k]) / K * total`` where the leaves lie side by side in order of index.
    out
        Tensors to write to.

    Returns
    -------
    SumTreeSample
        `out`, or new tensors. A leaf of value 0 is never drawn, whatever the rounding.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or (CPU) all leaves are zero. Elsewhere the values
        drawn from such a tree are 0.

    Examples
    --------
    >>> tree = sum_tree_new(3)
    >>> sum_tree_set(tree, torch.tensor([0, 2]), torch.tensor([1.0, 3.0], dtype=torch.float64))
    >>> sum_tree_sample(tree, torch.full((4,), 0.5, dtype=torch.float64)).leaf.tolist()
    [0, 2, 2, 2]
    """
    _check_tree(tree)
    size, device = (uniform.numel(),), tree.device
    checks.check_array("uniform", uniform, size, torch.float64, device, "[K]")
    if out is None:
        out = SumTreeSample(torch.empty_like(uniform, dtype=torch.int64), torch.empty_like(uniform))
    else:
        checks.check_array("out.leaf", out.leaf, size, torch.int64, device, "[K] as uniform")
        checks.check_array("out.value", out.value, size, torch.float64, device, "[K] as uniform")
    twin("sum_tree_sample", device.type)(tree, uniform, out.leaf, out.value)
    return out


def sum_tree_total(tree: Tensor) -> float:
    """Return the sum of all leaves."""
    _check_tree(tree)
    return float(tree[1])


def sum_tree_min(tree: Tensor) -> float:
    """Return the smallest leaf that is not zero, or 0 where all are; looks at every leaf."""
    leaves = sum_tree_leaves(tree)
    smallest = float(leaves.masked_fill(leaves == 0.0, math.inf).min())
    return 0.0 if smallest == math.inf else smallest


def sum_tree_leaves(tree: Tensor) -> Tensor:
    """Return a view of the leaves, float64 ``[capacity]``, to read from."""
    _check_tree(tree)
    width = tree.numel() // 2
    return tree[width : width + int(tree[0])]


def _width(capacity: int) -> int:
    """The power of two from `capacity` on."""
    return 1 << (capacity - 1).bit_length()


def _check_tree(tree: Tensor) -> None:
    size = tree.numel()
    checks.check_array("tree", tree, (size,), torch.float64, tree.device, "as sum_tree_new makes it")
    if size < 2 or size & (size - 1):
        raise SpecError(
            f"tree has {size} numbers: expected a power of two from 2 on, as sum_tree_new makes it"
        )


@register("sum_tree_set", "torch")
def _set_torch(tree: Tensor, index: Tensor, value: Tensor) -> None:
    # All entries of one leaf write the last one's value, so that their order does not matter.
    ordered, order = torch.sort(index, stable=True)
    last = order[torch.searchsorted(ordered, index, right=True) - 1]
    width = tree.numel() // 2
    node = index + width
    tree[node] = value[last]
    while width > 1:
        width //= 2
        node = node // 2
        tree[node] = tree[2 * node] + tree[2 * node + 1]


@register("sum_tree_sample", "torch")
def _sample_torch(tree: Tensor, uniform: Tensor, index: Tensor, value: Tensor) -> None:
    draws, width = uniform.numel(), tree.numel() // 2
    target = torch.arange(draws, dtype=torch.float64, device=tree.device) + uniform.clamp(0.0, 1.0)
    target = target / max(draws, 1) * tree[1]
    node = torch.ones_like(index)
    for _ in range(width.bit_length() - 1):
        left, right = tree[2 * node], tree[2 * node + 1]
        goes_left = (target < left) | (right == 0.0)
        target = torch.where(goes_left, target, target - left)
        node = 2 * node + (~goes_left).to(torch.int64)
    index.copy_(node - width)
    value.copy_(tree[node])


@register("sum_tree_set", "cpu")
def _set_cpu(tree: Tensor, index: Tensor, value: Tensor) -> None:
    outside, bad, _ = _set(tree.data_ptr(), tree.numel(), index.data_ptr(), value.data_ptr(), index.numel())
    if outside >= 0:
        checks.check_in_range("index", index, outside, int(tree[0]))
    if bad >= 0:
        raise SpecError(
            f"value[{bad}] is {value[bad]}: expected a finite number from 0 on; nothing was written"
        )


@register("sum_tree_sample", "cpu")
def _sample_cpu(tree: Tensor, uniform: Tensor, index: Tensor, value: Tensor) -> None:
    addresses = uniform.data_ptr(), index.data_ptr(), value.data_ptr()
    if not _sample(tree.data_ptr(), tree.numel(), *addresses, uniform.numel()):
        raise SpecError("tree has only leaves of value 0: expected something to draw; set a value first")


# The kernels take addresses, which cost less to hand over than arrays: a call is as short as that.


@cpu_kernel
def _set(tree_at: int, size: int, index_at: int, value_at: int, count: int) -> tuple[int, int, float]:
    tree = carray(at_address(tree_at), (size,), np.float64)
    index = carray(at_address(index_at), (count,), np.int64)
    value = carray(at_address(value_at), (count,), np.float64)
    width, capacity = size // 2, int(tree[0])
    outside = first_outside(index, capacity)
    bad = -1
    for k in range(count):
        if not 0.0 <= value[k] < np.inf:
            bad = k
            break
    if outside >= 0 or bad >= 0:
        return outside, bad, 0.0
    one = np.uint64(1)
    nodes = np.empty(count, np.uint64)  # unsigned: Numba then looks for no negative index
    # Reads, none of which waits for another, bring in what is written below, where each level waits for the
    # one before. Their sum is returned only so that the compiler keeps them.
    there = 0.0
    for k in range(count):
        node = np.uint64(index[k] + width)
        nodes[k] = node
        level = width
        while level > count:
            there += tree[node]
            node = node >> one
            level //= 2
    for k in range(count):
        tree[nodes[k]] = value[k]
    width //= 2
    while width > count:
        for k in range(count):
            node = nodes[k] >> one
            nodes[k] = node
            tree[node] = tree[node << one] + tree[(node << one) | one]
        width //= 2
    if count > 0:
        for n in range(2 * width - 1, 0, -1):  # the top, where most nodes are somebody's parent
            tree[n] = tree[2 * n] + tree[2 * n + 1]
    return -1, -1, there


@cpu_kernel
def _sample(tree_at: int, size: int, uniform_at: int, index_at: int, value_at: int, draws: int) -> bool:
    tree = carray(at_address(tree_at), (size,), np.float64)
    uniform = carray(at_address(uniform_at), (draws,), np.float64)
    index = carray(at_address(index_at), (draws,), np.int64)
    value = carray(at_address(value_at), (draws,), np.float64)
    width = size // 2
    for k in range(draws):
        position = uniform[k] if uniform[k] > 0.0 else 0.0
        position = position if position < 1.0 else 1.0
        index[k] = 1
        value[k] = (k + position) / draws * tree[1]  # the rest of the way, until the leaf is reached
    one = np.uint64(1)
    level = 1
    while level < width:  # all draws side by side: their loads do not wait for each other
        for k in range(draws):
            child = np.uint64(index[k]) << one
            left, right = tree[child], tree[child | one]
            goes_left = (value[k] < left) | (right == 0.0)  # never into a zero, also with a NaN
            value[k] -= 0.0 if goes_left else left
            index[k] = child | np.uint64(not goes_left)
        level *= 2
    for k in range(draws):
        value[k] = tree[np.uint64(index[k])]
        index[k] -= width
    return bool(draws == 0 or tree[1] > 0.0)

"""Copying items between arrays that stay where they are, many arrays in one call.

The learner moves every index of every environment several times: out of the slab, into an unroll slot, to
the next slot. The arrays are the same for a whole run; only the places change. `ItemCopier` therefore
looks at the arrays once and is called with index vectors alone: a few microseconds a call, whatever the
number of arrays. For arrays in the CPU's memory; elsewhere torch's own indexing does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels.jit import copy_bytes, cpu_kernel

Index = NDArray[np.int64]
_NOWHERE = np.zeros(0, np.int64)


class ItemCopier:
    """Copies items ``target[a, b] = source[c, d]`` for several pairs of arrays at once.

    An item is what an array holds at its first one or two axes, as many as `axes` says; its own axes have to
    be dense. Where targets and sources overlap, or one target is named twice, the order is undefined.

    Parameters
    ----------
    targets, sources
        Arrays in the CPU's memory, pair by pair of one dtype and item shape. They must stay in place; `aim`
        exchanges the sources.
    axes
        Axes of the targets and of the sources that an index selects from: 1 or 2 each.

    Raises
    ------
    SpecError
        If a pair does not fit.

    Examples
    --------
    >>> import torch
    >>> slots, rows = torch.zeros(2, 3), torch.tensor([5.0, 7.0])
    >>> copier = ItemCopier([slots], [rows], axes=(2, 1))
    >>> copier((np.array([1, 0]), np.array([2, 0])), (np.array([0, 1]),))
    >>> slots.tolist()
    [[7.0, 0.0, 0.0], [0.0, 0.0, 5.0]]
    """

    def __init__(
        self, targets: Sequence[Tensor], sources: Sequence[Tensor] | None, axes: tuple[int, int]
    ) -> None:
        self._axes = axes
        self._targets = list(targets)
        self._sources: list[Tensor] = []
        self._moves = np.zeros((len(targets), 7), np.int64)
        self._limits = np.full(4, np.iinfo(np.int64).max)
        for row, target in zip(self._moves, targets, strict=True):
            row[0:3] = _place(target, axes[0])
            row[6] = target[(0,) * axes[0]].nbytes if min(target.shape[: axes[0]]) else 0
        if targets:
            self._limits[0 : axes[0]] = targets[0].shape[: axes[0]]
        if sources is not None:
            self.aim(sources)

    def aim(self, sources: Sequence[Tensor]) -> None:
        """Take other sources from now on."""
        if len(sources) != len(self._targets):
            raise SpecError(f"{len(sources)} sources for {len(self._targets)} targets: expected one for each")
        self._sources = list(sources)
        to, of = self._axes
        for i, source in enumerate(sources):
            target = self._targets[i]
            if source.dtype is not target.dtype or source.shape[of:] != target.shape[to:]:
                raise SpecError(
                    f"source {i} has items {source.dtype} {list(source.shape[of:])}, its target "
                    f"{target.dtype} {list(target.shape[to:])}: expected the same"
                )
            self._moves[i, 3:6] = _place(source, of)
        if sources:
            self._limits[2 : 2 + of] = sources[0].shape[:of]

    def __call__(self, to: tuple[Index, ...], of: tuple[Index, ...]) -> None:
        """Copy one item for each entry of the index vectors, all of one length.

        Raises
        ------
        SpecError
            If an index is out of range; nothing is copied then.
        """
        a, b = to if len(to) == 2 else (to[0], _NOWHERE)
        c, d = of if len(of) == 2 else (of[0], _NOWHERE)
        axis = _copy(self._moves, self._limits, a, b, c, d)
        if axis >= 0:
            names = ("first target", "second target", "first source", "second source")
            index = (a, b, c, d)[axis]
            raise SpecError(
                f"the {names[axis]} index holds {int(index.min())} to {int(index.max())}: expected 0 to "
                f"{int(self._limits[axis]) - 1}; nothing was copied"
            )


def _place(array: Tensor, axes: int) -> tuple[int, int, int]:
    """Address of an array's first item, and the strides in bytes of its indexed axes."""
    if array.device.type != "cpu":
        raise SpecError(f"an array on {array.device}: expected one in the CPU's memory")
    item = array[(slice(0, 1),) * axes]
    if not item.is_contiguous() and item.numel():
        raise SpecError(f"an array with strides {array.stride()}: expected items that are dense")
    size = array.element_size()
    strides = [stride * size for stride in array.stride()[:axes]]
    return array.data_ptr(), strides[0], strides[1] if axes == 2 else 0


@cpu_kernel
def _copy(moves: Any, limits: Any, a: Index, b: Index, c: Index, d: Index) -> int:
    """Return the position of an index vector that is out of range, or -1 once all is copied."""
    count = a.shape[0]
    for i in range(count):
        if a[i] < 0 or a[i] >= limits[0]:
            return 0
        if b.shape[0] and (b[i] < 0 or b[i] >= limits[1]):
            return 1
        if c[i] < 0 or c[i] >= limits[2]:
            return 2
        if d.shape[0] and (d[i] < 0 or d[i] >= limits[3]):
            return 3
    for k in range(moves.shape[0]):
        to, to_0, to_1, of, of_0, of_1, nbytes = moves[k]
        for i in range(count):
            target = to + a[i] * to_0
            if b.shape[0]:
                target += b[i] * to_1
            source = of + c[i] * of_0
            if d.shape[0]:
                source += d[i] * of_1
            copy_bytes(target, source, nbytes)
    return -1

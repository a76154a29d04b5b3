"""Priorities of the sequences, and samples in proportion to them (Schaul et al. 2016, arXiv 1511.05952)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from seedflow.errors import SeedflowError
from seedflow.kernels import sum_tree_new, sum_tree_sample, sum_tree_set, sum_tree_total

SMALLEST = 1e-6
"""Lower bound of a priority where it is sampled by: nothing is out of reach for good."""

LARGEST = 1e100
"""A priority beyond it is no TD error any more; refused, as it would swallow the sum of all others."""


class Priorities:
    """One priority a slot, and the sum tree over their powers.

    Invariant: the leaf of an occupied slot is ``max(priority, SMALLEST) ** exponent``, that of a free one 0.

    Parameters
    ----------
    slots
        How many there are.
    exponent
        alpha: 1 samples in proportion to the priorities, 0 uniformly.
    """

    def __init__(self, slots: int, exponent: float) -> None:
        self._exponent = exponent
        self._tree = sum_tree_new(slots)
        self.values = np.zeros(slots, np.float64)
        """Before the exponent; of free slots 0."""
        self.largest = 1.0
        """The largest priority so far, which a new sequence gets where it has none of its own."""

    def set(self, slots: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Give slots their priorities; of a slot that comes twice the last counts.

        Raises
        ------
        SeedflowError
            As `check_priorities`; nothing is changed then.
        """
        values = priorities.tolist()
        check_priorities(values)
        # Python's pow gives the same bits for one value as for many, numpy's need not: a restored tree is
        # built in one go and must equal one that grew.
        leaves = np.array([max(value, SMALLEST) ** self._exponent for value in values], np.float64)
        sum_tree_set(self._tree, torch.from_numpy(slots), torch.from_numpy(leaves))
        self.values[slots] = priorities
        self.largest = max(self.largest, *values) if values else self.largest

    def clear(self, slot: int) -> None:
        """Make a slot free: it is not sampled any more."""
        sum_tree_set(self._tree, torch.tensor([slot]), torch.zeros(1, dtype=torch.float64))
        self.values[slot] = 0.0

    def sample(self, uniform: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw occupied slots, stratified: draw k from the k-th part of the sum.

        Parameters
        ----------
        uniform
            Random numbers from [0, 1), ``[B]``.

        Returns
        -------
        tuple
            Slots and the probabilities P(i) with which one draw over the whole sum takes them, ``[B]``.
        """
        drawn = sum_tree_sample(self._tree, torch.from_numpy(uniform))
        return drawn.leaf.numpy(), drawn.value.numpy() / sum_tree_total(self._tree)


def check_priorities(values: Iterable[float]) -> None:
    """Check that priorities can be sampled by.

    Raises
    ------
    SeedflowError
        For one that is negative, not finite or absurdly large.
    """
    for value in values:
        if not 0.0 <= value <= LARGEST:
            raise SeedflowError(
                f"a sequence's priority is {value}: expected a number from 0 to {LARGEST:g}; the loss has "
                "diverged, or the priority is computed wrongly"
            )


def importance_weights(probabilities: NDArray[np.float64], size: int, exponent: float) -> NDArray[np.float32]:
    """Weights that correct for sampling by priority, the largest of the batch being 1.

    ``(1 / (N P(i))) ** beta`` over its maximum, with N the sequences held.

    Examples
    --------
    >>> importance_weights(np.array([0.5, 0.125]), size=8, exponent=0.5).tolist()
    [0.5, 1.0]
    """
    weights: NDArray[np.float64] = (size * probabilities) ** -exponent
    relative: NDArray[np.float64] = weights / weights.max()
    return relative.astype(np.float32)

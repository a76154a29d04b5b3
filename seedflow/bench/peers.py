"""Sum trees of other libraries, where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Sample = Callable[[np.ndarray], object]
Update = Callable[[np.ndarray, np.ndarray], object]


@dataclass(frozen=True)
class Peer:
    """Sampling with random numbers, and updates of some leaves."""

    sample: Sample
    update: Update


def sum_tree_peers(capacity: int, values: np.ndarray, count: int) -> tuple[dict[str, Peer], tuple[str, ...]]:
    """Build the peers' trees over `values`; returns them and a note for each that is not there."""
    peers: dict[str, Peer] = {"numpy": _numpy(values)}
    notes = []
    for name, build in (("cpprb", _cpprb), ("torchrl", _torchrl)):
        try:
            peers[name] = build(capacity, values, count)
        except Exception as error:  # whatever keeps another library from loading
            notes.append(f"left out: {name} ({type(error).__name__}: {str(error).splitlines()[0]})")
    return peers, tuple(notes)


def _numpy(values: np.ndarray) -> Peer:
    """Levels of the tree as arrays; one vectorized step a level."""
    width = 1 << (len(values) - 1).bit_length()
    tree = np.zeros(2 * width)
    tree[width : width + len(values)] = values
    for n in range(width - 1, 0, -1):
        tree[n] = tree[2 * n] + tree[2 * n + 1]

    def sample(uniform: np.ndarray) -> np.ndarray:
        target = (np.arange(len(uniform)) + uniform) / len(uniform) * tree[1]
        node = np.ones(len(uniform), np.int64)
        for _ in range(width.bit_length() - 1):
            left = tree[2 * node]
            right = target >= left
            target = np.where(right, target - left, target)
            node = 2 * node + right
        return node - width

    def update(index: np.ndarray, value: np.ndarray) -> None:
        tree[width + index] = value
        node = (width + index) >> 1
        while node[0] > 0:
            node = np.unique(node)
            tree[node] = tree[2 * node] + tree[2 * node + 1]
            node = node >> 1

    return Peer(sample, update)


def _cpprb(capacity: int, values: np.ndarray, count: int) -> Peer:
    library: Any = importlib.import_module("cpprb")
    buffer = library.PrioritizedReplayBuffer(capacity, {"x": {"shape": 1}}, alpha=1.0, eps=0.0)
    buffer.add(x=np.zeros((len(values), 1), np.float32), priorities=values)

    def sample(uniform: np.ndarray) -> object:
        return buffer.sample(count, beta=0.4)

    return Peer(sample, buffer.update_priorities)


def _torchrl(capacity: int, values: np.ndarray, count: int) -> Peer:
    library: Any = importlib.import_module("torchrl._torchrl")
    tree = library.SumSegmentTreeFp64(capacity)
    tree[np.arange(capacity)] = values

    def sample(uniform: np.ndarray) -> object:
        total = tree.query(0, capacity)
        return tree.scan_lower_bound((np.arange(count) + uniform) / count * total)

    def update(index: np.ndarray, value: np.ndarray) -> None:
        tree[index] = value

    return Peer(sample, update)

"""Arrays by name, nested: what a part of a run hands over to go on in another process exactly where it was.

Such a part has two methods: ``state`` gives its arrays, which the caller copies or writes before the part
goes on, and ``go_on_from`` takes them back in a part that was made from the same configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def nest(**parts: Mapping[str, NDArray[Any]]) -> Arrays:
    """Arrays of several parts, as ``part/name``.

    Examples
    --------
    >>> list(nest(ring={"cells": np.zeros(2)}, pool={"free": np.ones(1)}))
    ['ring/cells', 'pool/free']
    """
    return {f"{part}/{name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def part(arrays: Mapping[str, NDArray[Any]], name: str) -> Arrays:
    """The arrays of one part, without its name.

    Examples
    --------
    >>> list(part({"ring/cells": np.zeros(2), "pool/free": np.ones(1)}, "pool"))
    ['free']
    """
    start = f"{name}/"
    return {key.removeprefix(start): array for key, array in arrays.items() if key.startswith(start)}


def numbers(*values: float) -> NDArray[np.int64]:
    """Whole numbers as an array."""
    return np.array(values, np.int64)

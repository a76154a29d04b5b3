"""From a chunk's arrays to its encoded data, checked against the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from seedflow.errors import SpecError
from seedflow.replay.codec import encode
from seedflow.replay.layout import ReplaySpec
from seedflow.specs import ArraySpec

Array = NDArray[np.generic]


class ChunkEncoder:
    """Encodes chunks of one spec; may be used by several threads at once."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._spec = spec
        self._fields = [(array, spec.shape(array), spec.compressed(array)) for array in spec.fields]
        self._state = [(array, spec.shape(array), spec.compressed(array)) for array in spec.state]

    def encode(
        self, fields: Mapping[str, Array], state: Sequence[Array] | None, position: int
    ) -> tuple[bytes, ...]:
        """Encode the chunk at a position of its lane.

        Parameters
        ----------
        fields
            Name to array ``[rows, ...]``.
        state
            Core state fed at the first index; not looked at where no sequence begins.

        Raises
        ------
        SpecError
            When an array is missing or not as the spec says.
        """
        data = []
        for array, shape, compressed in self._fields:
            if array.name not in fields:
                raise SpecError(f"a chunk lacks {array.name}: expected {_names(self._spec.fields)}")
            data.append(_encode(array, shape, compressed, fields[array.name]))
        if self._state and self._spec.begins(position):
            if state is None or len(state) != len(self._state):
                raise SpecError(
                    f"a sequence begins at this chunk, and its core state has "
                    f"{0 if state is None else len(state)} arrays: expected {_names(self._spec.state)}"
                )
            for (array, shape, compressed), value in zip(self._state, state, strict=True):
                data.append(_encode(array, shape, compressed, value))
        return tuple(data)


def _encode(array: ArraySpec, shape: tuple[int, ...], compressed: bool, value: Array) -> bytes:
    if value.shape != shape or value.dtype != array.dtype:
        raise SpecError(
            f"{array.name} of a chunk is {value.dtype} {value.shape}: expected {array.dtype} {shape}"
        )
    return encode(value, compressed)


def _names(arrays: Sequence[ArraySpec]) -> str:
    return ", ".join(array.name for array in arrays)

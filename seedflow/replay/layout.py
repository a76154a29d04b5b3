"""What the replay stores: the arrays of a chunk, and how chunks make up a sequence.

A *chunk* is C consecutive indices of one environment, stored once. A *lane* is one unbroken chain of
chunks of one environment. A *sequence* is K = (burn_in + unroll) / C consecutive chunks of a lane; a new
one begins every `period` indices, so sequences share chunks.

Examples
--------
>>> import numpy as np
>>> frame = ArraySpec("observation", (84, 84), np.dtype("uint8"))
>>> spec = ReplaySpec((frame,), (), chunk=40, burn_in=40, unroll=80, period=40)
>>> spec.chunks_per_sequence, spec.length, [spec.begins(position) for position in range(3)]
(3, 120, [True, True, True])
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from seedflow.errors import CheckpointError, ConfigError
from seedflow.specs import OBSERVATION_DTYPES, ArraySpec

SMALL = 64
"""Observation leaves of at most this many bytes an index are stored as they are."""

DTYPES = frozenset({*OBSERVATION_DTYPES, "uint16", "uint32", "uint64"})


@dataclass(frozen=True)
class ReplaySpec:
    """The arrays of a chunk and the geometry of sequences.

    Parameters
    ----------
    fields
        Arrays with one row an index: observation leaves (named ``observation`` or ``observation/...``),
        reward, flags, action, what acting recorded. Their names are the keys everywhere.
    state
        Core state that was fed at a chunk's first index. It is stored only where a sequence can begin.
    chunk, burn_in, unroll, period
        In indices; see the module's docstring.

    Raises
    ------
    ConfigError
        When chunk does not divide the other three, or a number is too small, or two arrays share a name.
    """

    fields: tuple[ArraySpec, ...]
    state: tuple[ArraySpec, ...]
    chunk: int
    burn_in: int
    unroll: int
    period: int

    def __post_init__(self) -> None:
        for name, least in (("chunk", 1), ("burn_in", 0), ("unroll", 1), ("period", 1)):
            value = getattr(self, name)
            if value < least:
                raise ConfigError(f"replay.{name} = {value}: expected at least {least}")
            if value % self.chunk:
                raise ConfigError(
                    f"replay.{name} = {value} is not a multiple of replay.chunk = {self.chunk}: sequences "
                    "begin and end with chunks; choose a chunk that divides burn_in, unroll and period"
                )
        names = [array.name for array in self.arrays]
        if len(set(names)) != len(names) or not self.fields:
            raise ConfigError(
                f"the replay's arrays are named {names}: expected one field or more, no name twice"
            )

    @property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """All arrays of a chunk in the order of `Chunk.data`: fields, then state."""
        return self.fields + self.state

    @property
    def bootstrap(self) -> int:
        """Indices of the next chunk that a chunk stores as well: 1 where ``period == unroll``, else 0.

        There the unrolls of successive sequences do not overlap, and a sequence that ended with its own
        last index could not train on the transition out of it. The chunk that follows overwrites that
        row with the same bytes when a sequence is decoded chunk after chunk.
        """
        return int(self.period == self.unroll)

    @property
    def rows(self) -> int:
        """Indices stored in a chunk."""
        return self.chunk + self.bootstrap

    @property
    def chunks_per_sequence(self) -> int:
        """K."""
        return (self.burn_in + self.unroll) // self.chunk

    @property
    def length(self) -> int:
        """Indices of a sequence, the bootstrap one included."""
        return self.burn_in + self.unroll + self.bootstrap

    def begins(self, position: int) -> bool:
        """Whether a sequence begins at the chunk that is the `position`-th of its lane, from 0."""
        return position * self.chunk % self.period == 0

    def shape(self, array: ArraySpec) -> tuple[int, ...]:
        """Shape of an array as one chunk stores it."""
        return array.shape if array in self.state else (self.rows, *array.shape)

    def compressed(self, array: ArraySpec) -> bool:
        """Whether an array is stored compressed: large observation leaves and uint8 core state are.

        Floating core state and single numbers do not shrink, or not by enough to pay for it.
        """
        if array in self.state:
            return array.dtype == np.uint8
        is_observation = array.name.split("/")[0] == "observation"
        return is_observation and array.nbytes > SMALL

    def raw_bytes(self, position: int = 0) -> int:
        """Bytes of the chunk at a position of its lane before encoding."""
        state = sum(array.nbytes for array in self.state) if self.begins(position) else 0
        return sum(array.nbytes for array in self.fields) * self.rows + state

    def fingerprint(self) -> str:
        """Hash by which two replays know that their chunks can be mixed."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def describe_difference(self, other: ReplaySpec) -> str | None:
        """Name the first difference between this spec (here) and another (there); None where equal.

        Examples
        --------
        >>> import numpy as np
        >>> def spec(size, chunk=40):
        ...     frame = ArraySpec("observation", (size, size), np.dtype("uint8"))
        ...     return ReplaySpec((frame,), (), chunk, burn_in=40, unroll=80, period=40)
        >>> spec(84).describe_difference(spec(96))
        'observation: uint8 (84, 84) here, uint8 (96, 96) there'
        >>> spec(84).describe_difference(spec(84, chunk=20))
        'chunk: 40 here, 20 there'
        """
        for here, there in ((self.fields, other.fields), (self.state, other.state)):
            ours, theirs = {a.name: a for a in here}, {a.name: a for a in there}
            for name in [*ours, *theirs]:
                if ours.get(name) != theirs.get(name):
                    return f"{name}: {_words(ours.get(name))} here, {_words(theirs.get(name))} there"
            if list(ours) != list(theirs):
                return f"order of the arrays: {', '.join(ours)} here, {', '.join(theirs)} there"
        for name in ("chunk", "burn_in", "unroll", "period"):
            if getattr(self, name) != getattr(other, name):
                return f"{name}: {getattr(self, name)} here, {getattr(other, name)} there"
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "fields": [array.to_json() for array in self.fields],
            "state": [array.to_json() for array in self.state],
            "chunk": self.chunk,
            "burn_in": self.burn_in,
            "unroll": self.unroll,
            "period": self.period,
        }

    @classmethod
    def from_json(cls, untrusted: Any) -> ReplaySpec:
        """Read a spec from parsed JSON of unknown origin.

        Raises
        ------
        CheckpointError
            When it is anything but what `to_json` writes.
        """
        try:
            return cls(
                _arrays(untrusted["fields"]),
                _arrays(untrusted["state"]),
                *(_count(untrusted[name]) for name in ("chunk", "burn_in", "unroll", "period")),
            )
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise CheckpointError(f"this is no description of a replay's arrays: {error!r}") from error


def _words(array: ArraySpec | None) -> str:
    return "absent" if array is None else f"{array.dtype.name} {array.shape}"


def _arrays(untrusted: Iterable[Mapping[str, Any]]) -> tuple[ArraySpec, ...]:
    arrays = []
    for value in untrusted:
        name, dtype = value["name"], value["dtype"]
        if not isinstance(name, str) or dtype not in DTYPES:
            raise ValueError(f"array {name!r} of dtype {dtype!r}")
        arrays.append(ArraySpec(name, tuple(map(_count, value["shape"])), np.dtype(dtype)))
    return tuple(arrays)


def _count(untrusted: Any) -> int:
    if type(untrusted) is not int or not 0 <= untrusted < 2**31:
        raise ValueError(f"{untrusted!r} is no size")
    return untrusted

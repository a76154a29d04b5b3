"""Small replays whose contents tell where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from seedflow.config import ReplayConfig
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.specs import ArraySpec

STRIDE = 1_000_000
"""The `index` field of the t-th index of lane n is ``n * STRIDE + t``."""

FIELDS = (
    ArraySpec("observation", (25, 48), np.dtype("uint8")),
    ArraySpec("index", (), np.dtype("int64")),
    ArraySpec("first", (), np.dtype("bool")),
)
STATE = (ArraySpec("lstm", (4,), np.dtype("float32")), ArraySpec("stack", (5,), np.dtype("uint8")))


def make_spec(chunk: int = 2, burn_in: int = 2, unroll: int = 4, period: int = 2) -> ReplaySpec:
    return ReplaySpec(FIELDS, STATE, chunk, burn_in, unroll, period)


def make_config(spec: ReplaySpec, **settings: Any) -> ReplayConfig:
    """A configuration that fits a spec; samples are not limited unless `settings` say so."""
    defaults = {
        "capacity": 8,
        "min_size": 1,
        "samples_per_insert": 1.0,
        "tolerance": 1e9,
        "decode_threads": 1,
        "memory_gib": 1.0,
    }
    geometry = {name: getattr(spec, name) for name in ("chunk", "burn_in", "unroll", "period")}
    return ReplayConfig(**{**geometry, **defaults, **settings})


def make_replay(spec: ReplaySpec, seed: int = 0, snapshot: Any = None, **settings: Any) -> Replay:
    return Replay(spec, make_config(spec, **settings), seed, snapshot=snapshot)


@lru_cache(20_000)
def observation(index: int) -> np.ndarray:
    """What is seen at an index, and only there; none, half or all of it is noise."""
    frame = np.zeros(25 * 48, np.uint8)
    noise = hashlib.shake_128(str(index).encode()).digest(8 + index % 3 * (len(frame) // 2 - 8))
    frame[: len(noise)] = np.frombuffer(noise, np.uint8)
    return frame.reshape(25, 48)


def arrays(spec: ReplaySpec, lane: int, position: int) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Fields and core state of a chunk."""
    index = lane * STRIDE + position * spec.chunk + np.arange(spec.rows)
    fields = {
        "observation": np.stack([observation(i) for i in index.tolist()]),
        "index": index,
        "first": index % 5 == 0,
    }
    return fields, state(int(index[0]))


def state(index: int) -> list[np.ndarray]:
    """Core state fed at an index."""
    return [np.arange(4, dtype=np.float32) + index, np.full(5, index % 251, np.uint8)]


def fill(replay: Replay, lane: int, positions: Iterable[int], priority: float | None = None) -> list[int]:
    """Insert chunks of a lane; returns the generations that they completed."""
    generations = []
    for position in positions:
        generation = replay.insert(lane, *arrays(replay.spec, lane, position), priority)
        if generation is not None:
            generations.append(generation)
    return generations


def beginnings(batch: SequenceBatch) -> list[tuple[int, int]]:
    """Lane and first index of every sequence of a batch; fails where one is not an unbroken run."""
    found = []
    for row, index in enumerate(batch.fields["index"]):
        begin = int(index[0])
        assert index.tolist() == list(range(begin, begin + batch.spec.length))
        assert batch.fields["first"][row].tolist() == [i % 5 == 0 for i in index.tolist()]
        expected = np.stack([observation(i) for i in index.tolist()])
        assert (batch.fields["observation"][row] == expected).all()
        for array, part in zip(state(begin), batch.state, strict=True):
            assert (part[row] == array).all()
        found.append(divmod(begin, STRIDE))
    return found

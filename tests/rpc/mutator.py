"""Messages that are wrong in every way: made from right ones by a seeded mutator, or by hypothesis."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

EXTREMES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 255, 256, 2**31, 2**62, 2**63, 2**64, 10**30, 0.5, float("nan"), "", "x", "\ud800",
    "\0", "a" * 9_000, [], [[]], {}, {"": None}, [1, 2, 3],
)  # fmt: skip


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """A message of the corpus with one to four things wrong; now and then none, or nothing but noise."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        data = rng.choice(_MUTATIONS)(rng, data, corpus)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _overwrite(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    start = rng.randrange(len(data) + 1)
    data[start : start + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
    return data


def _truncate(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def _extend(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return data + rng.randbytes(rng.choice((1, 2, 16, 300, 70_000)))


def _splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _noise(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return bytearray(rng.randbytes(rng.choice((0, 1, 2, 3, 40, 2_000))))


def _another_kind(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return bytearray((rng.randrange(12),)) + data[1:]


def _another_value(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    """Put an extreme value into the JSON of a control message, or take a field away."""
    try:
        body = json.loads(bytes(data[1:]))
    except (ValueError, RecursionError):
        return data
    part = body
    while isinstance(part, dict) and part:
        key = rng.choice(sorted(part))
        if isinstance(part[key], dict) and rng.random() < 0.7:
            part = part[key]
            continue
        if rng.random() < 0.2:
            del part[key]
        else:
            part[key] = rng.choice(EXTREMES)
        break
    return data[:1] + json.dumps(body).encode("utf-8", "surrogatepass")


def _nest(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> bytearray:
    return data[:1] + rng.choice((b"[", b'{"a":', b"-")) * rng.choice((10, 1_000, 20_000))


_ONCE = (_flip, _overwrite, _truncate, _extend, _splice, _noise, _another_kind, _nest)
_MUTATIONS = (*_ONCE, _another_value, _another_value)

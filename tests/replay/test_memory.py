"""Bytes expected, allowed and kept to."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seedflow.config import ReplayConfig
from seedflow.errors import ConfigError, ReplayFull
from seedflow.replay.chunks import ARRAY_OVERHEAD, CHUNK_OVERHEAD
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.memory import gib, limit_bytes, machine_bytes, plan_memory
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.specs import ArraySpec

from .rig import make_config, make_replay, make_spec

ATARI = ReplaySpec(
    (
        ArraySpec("observation", (84, 84), np.dtype("uint8")),
        ArraySpec("reward", (), np.dtype("float32")),
        ArraySpec("first", (), np.dtype("bool")),
    ),
    (ArraySpec("c", (512,), np.dtype("float32")), ArraySpec("h", (512,), np.dtype("float32"))),
    chunk=40,
    burn_in=40,
    unroll=80,
    period=40,
)


def test_what_is_expected_and_allowed_is_said_at_the_start() -> None:
    said: list[str] = []
    plan = plan_memory(ATARI, ReplayConfig(memory_gib=4.0), said.append)
    assert said == [str(plan)]
    assert plan.transitions == 100_002 * 40
    assert plan.raw == 100_002 * (40 * (84 * 84 + 5) + 4096)
    assert 0.4e9 < plan.least < 0.6e9
    assert plan.limit == 4 * 2**30
    assert (
        "100,000 sequences of 120 indices are 4,000,080 transitions, 26.7 GiB before compression" in said[0]
    )
    assert "4 GiB are allowed" in said[0]


def test_every_transition_is_counted_once_in_any_geometry() -> None:
    for spec in (make_spec(), make_spec(period=4), make_spec(burn_in=0, period=8), make_spec(burn_in=8)):
        capacity = 50
        said: list[str] = []
        plan = plan_memory(spec, make_config(spec, capacity=capacity), said.append)
        steps = spec.period // spec.chunk
        chunks = {
            first + k for first in range(0, capacity * steps, steps) for k in range(spec.chunks_per_sequence)
        }
        assert plan.transitions == len(chunks) * spec.chunk


def test_a_capacity_that_cannot_fit_is_refused_with_the_numbers() -> None:
    config = ReplayConfig(memory_gib=0.25)
    with pytest.raises(ConfigError) as raised:
        Replay(ATARI, config, seed=0)
    message = str(raised.value)
    assert "replay.capacity = 100000 takes at least 0.474 GiB for what does not compress" in message
    assert "(reward, first, c, h), and 0.25 GiB are allowed (replay.memory_gib)" in message
    (fits,) = re.findall(r"lower replay.capacity to (\d+)", message)
    Replay(ATARI, config.model_copy(update={"capacity": int(fits)}), seed=0).close()


def cgroups(root: Path, line: str, limits: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line)
    for name, text in limits.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "limits", "expected"),
    [
        ("0::/job/step\n", {"job/step/memory.max": "max\n", "job/memory.max": "4096000\n"}, 4096000),
        ("0::/job\n", {"job/memory.max": "4096000\n", "memory.max": "8192\n"}, 8192),
        ("3:cpu:/x\n9:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "4096000\n"}, 4096000),
        ("9:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "12345\n"}, 12345),
    ],
)
def test_a_cgroup_bounds_the_machine(
    tmp_path: Path, line: str, limits: dict[str, str], expected: int
) -> None:
    assert machine_bytes(cgroups(tmp_path, line, limits)) == expected


def test_without_a_limit_half_of_the_machine_is_allowed(tmp_path: Path) -> None:
    whole = machine_bytes(tmp_path)
    assert whole > 2**28
    assert machine_bytes(cgroups(tmp_path, "0::/\n", {"memory.max": f"{whole * 2}\n"})) == whole
    assert limit_bytes(None) == machine_bytes() // 2
    assert limit_bytes(0.5) == 2**29
    assert gib(3 * 2**29) == "1.5 GiB"


NOISE = replace(
    make_spec(chunk=2, burn_in=0, unroll=4, period=2),
    fields=(ArraySpec("observation", (64, 64), np.dtype("uint8")),),
    state=(),
)


CHUNK = 2 * 64 * 64 + ARRAY_OVERHEAD + CHUNK_OVERHEAD
"""Memory of one chunk of noise, but for some bytes."""


def noise(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"observation": rng.integers(0, 256, (2, 64, 64)).astype(np.uint8)}


def test_frames_that_do_not_compress_stay_below_the_limit_and_the_oldest_go() -> None:
    said: list[str] = []
    limit = 50 * CHUNK
    config = make_config(NOISE, capacity=100, min_size=4, memory_gib=limit / 2**30)
    replay = Replay(NOISE, config, seed=0, batch=6, report=said.append)
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(200):
        replay.insert(number % 3, noise(rng), None)
        metrics = replay.metrics()
        sizes.append(metrics["replay/bytes"])
        assert sizes[-1] <= limit
    assert max(sizes) > 0.95 * limit
    assert metrics["replay/evicted_for_memory"] == metrics["replay/evicted"] > 100
    assert metrics["replay/compression"] == pytest.approx(1.0, abs=0.01)
    assert len(said) == 2
    assert re.search(r"limit of .* is reached with 4\d of 100 sequences", said[1])
    held = replay.snapshot().sequences.generation.tolist()
    assert held == list(range(197 - len(held), 197))
    batch = SequenceBatch(NOISE, 16)
    sample = replay.sample(batch)
    assert sample
    assert set(sample.generations.tolist()) <= set(held)
    replay.close()


@pytest.mark.parametrize(("min_size", "batch"), [(8, 1), (1, 8)])
def test_too_few_sequences_for_a_batch_are_an_error(min_size: int, batch: int) -> None:
    config = make_config(NOISE, capacity=100, min_size=min_size, memory_gib=8.5 * CHUNK / 2**30)
    replay = Replay(NOISE, config, seed=0, batch=batch)
    rng = np.random.default_rng(0)
    for _ in range(8):
        replay.insert("env", noise(rng), None)
    with pytest.raises(ReplayFull, match=r"reached with 7 sequences, and 8 must be there"):
        replay.insert("env", noise(rng), None)
    replay.close()


def test_what_is_restored_stays_below_the_limit() -> None:
    replay = make_replay(NOISE, capacity=100)
    rng = np.random.default_rng(0)
    for _ in range(41):
        replay.insert("env", noise(rng), None)
    limit = 20 * CHUNK
    said: list[str] = []
    config = make_config(NOISE, capacity=100, memory_gib=limit / 2**30)
    smaller = Replay(NOISE, config, seed=0, snapshot=replay.snapshot(), report=said.append)
    assert smaller.metrics()["replay/bytes"] <= limit
    held = smaller.snapshot().sequences.generation.tolist()
    assert held == list(range(40 - len(held), 40))
    assert len(held) > 10
    assert said[-1] == f"replay: the newest {len(held)} of the checkpoint's 40 sequences are kept"
    replay.close()
    smaller.close()

"""What a full replay takes of the machine's memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHUNKS = 100_000

SCRIPT = """
import gc, json, sys
import numpy as np
import psutil
from seedflow.config import ReplayConfig
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.specs import ArraySpec
from tests.replay.test_footprint import pong_frames

chunks = int(sys.argv[1])
names = {"observation": ((84, 84), "uint8"), "reward": ((), "float32"), "terminated": ((), "bool"),
         "truncated": ((), "bool"), "first": ((), "bool"), "action": ((), "int32"),
         "q_taken": ((), "float32"), "q_best": ((), "float32")}
fields = tuple(ArraySpec(name, shape, np.dtype(kind)) for name, (shape, kind) in names.items())
state = tuple(ArraySpec(name, (512,), np.dtype("float32")) for name in ("hidden", "cell"))
spec = ReplaySpec(fields, state, chunk=40, burn_in=40, unroll=80, period=40)
frames = pong_frames(4000)
rng = np.random.default_rng(0)

def fill(replay, count):
    for i in range(count):
        begin = i * 37 % 3960
        values = {array.name: np.zeros((40, *array.shape), array.dtype) for array in fields}
        values["observation"] = frames[begin : begin + 40]
        replay.insert(i % 64, values, [rng.random(512, dtype=np.float32) for _ in range(2)])

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

config = ReplayConfig(capacity=chunks, min_size=1, tolerance=1e12, memory_gib=4.0)
warm = Replay(spec, config, 0)
fill(warm, 200)
warm.close()
del warm
before = resident()
replay = Replay(spec, config, 0)
fill(replay, chunks)
metrics = replay.metrics()
after = resident()
replay.close()
print(json.dumps({"taken": after - before, "resident": after, **metrics}))
"""


def pong_frames(count: int):  # type: ignore[no-untyped-def]
    """Frames of Pong under a random policy, ``uint8[count, 84, 84]``."""
    import numpy as np
    from ale_py.vector_env import AtariVectorEnv

    envs = AtariVectorEnv("pong", num_envs=1, stack_num=1)
    rng, frames = np.random.default_rng(0), []
    observation, _ = envs.reset(seed=0)
    while len(frames) < count:
        frames.append(observation[0, 0].copy())
        observation = envs.step(rng.integers(0, 6, 1))[0]
    envs.close()
    return np.stack(frames)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_chunks_of_pong_with_an_lstm_take_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(CHUNKS)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["replay/chunks"] == CHUNKS
    assert found["taken"] < 1.0e9
    assert found["resident"] < 1.3e9
    assert found["taken"] == pytest.approx(found["replay/bytes"], rel=0.1)

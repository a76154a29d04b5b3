"""Memory that two processes share: both see the same arrays, rings, locks and weights."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from seedflow.errors import TransportError
from seedflow.learner.arena import Arena, SharedArena
from seedflow.learner.weights import PublishedWeights

CPU = torch.device("cpu")


@contextmanager
def other_process(code: str, fds: list[int]) -> Iterator[subprocess.Popen[str]]:
    """A process that inherits an arena as `arena` and runs `code`."""
    program = "import json, sys, torch\nfrom seedflow.learner.arena import SharedArena\n"
    program += "arena = SharedArena(json.loads(sys.argv[1]))\n" + code
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(fds)],
        pass_fds=fds,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_both_processes_see_the_same_arrays_and_rings() -> None:
    arena = SharedArena()
    numbers, ring = arena.zeros((2, 3), torch.float32), arena.ring(4)
    flags, nothing = arena.zeros((5,), torch.bool), arena.zeros((0, 7), torch.uint8)
    assert nothing.shape == (0, 7)
    code = """
numbers, ring = arena.zeros((2, 3), torch.float32), arena.ring(4)
flags, nothing = arena.zeros((5,), torch.bool), arena.zeros((0, 7), torch.uint8)
sys.stdin.readline()
numbers += 1
flags[1] = True
ring.put([3, 1, 2])
"""
    with other_process(code, arena.fds) as process:
        assert process.stdin is not None
        numbers[0] = 5.0
        print(file=process.stdin, flush=True)
        ring.wait(60.0)
        assert ring.take(9) == [3, 1, 2]
        assert numbers.tolist() == [[6.0] * 3, [1.0] * 3]
        assert flags.tolist() == [False, True, False, False, False]
    ring.close()
    arena.close()


def test_a_lock_keeps_two_processes_apart() -> None:
    arena = SharedArena()
    counter, lock = arena.counters(1), arena.lock()
    code = """
counter, lock = arena.counters(1), arena.lock()
for _ in range(20_000):
    with lock:
        counter[0] += 1
"""
    with other_process(code, arena.fds):
        for _ in range(20_000):
            with lock:
                counter[0] += 1
    assert counter[0] == 40_000
    lock.close()
    arena.close()


def test_weights_published_by_one_process_are_whole_in_the_other() -> None:
    arena = SharedArena()
    weights = PublishedWeights(arena, 1000)
    code = """
from seedflow.learner.weights import PublishedWeights
weights = PublishedWeights(arena, 1000)
for version in range(1, 3001):
    weights.publish(torch.full((1000,), float(version)), version)
"""
    newest = 0
    with other_process(code, arena.fds) as process:
        while process.poll() is None or newest < 3000:
            place, version = weights.pin()
            seen = weights.buffers[place]
            assert version >= newest
            assert (seen == float(version)).all()
            newest = version
    assert newest == 3000
    weights.close()
    arena.close()


def test_memory_that_is_not_there_is_an_error_with_the_size_and_what_to_lower() -> None:
    arena = SharedArena()
    with pytest.raises(TransportError, match=r"no 107374182400\.0 MiB .* lower rollout\.queue"):
        arena.zeros((100 * 2**50,), torch.uint8)
    arena.close()


def test_an_arena_of_one_process_gives_ordinary_tensors() -> None:
    arena = Arena(CPU)
    ring, lock = arena.ring(2), arena.lock()
    assert arena.zeros((2,), torch.int64).tolist() == [0, 0]
    ring.put([1])
    assert ring.take(1) == [1]
    with lock:
        pass
    ring.close()
    lock.close()
    arena.close()

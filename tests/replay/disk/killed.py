"""Kill a process that saves its replay, again and again, and check what it leaves.

Run as a program: ``python -m tests.replay.disk.killed DIRECTORY ROUNDS SEED FORM``. It forks a process that
saves in a loop and acknowledges each generation, kills it at a random time, restores, and goes on from there.
A ring is a function of how many chunks have arrived, so every byte of what is restored is known.

``python -m tests.replay.disk.killed save DIRECTORY FORM [no-sync]`` only saves, for others to kill.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from seedflow.checkpoints import Generations, LocalStore, WriterLock
from seedflow.checkpoints.syscalls import Syscalls
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.save import ReplaySaver
from tests.replay.disk.ring import Ring, check_equal, save

CAPACITY = 30


class WithoutSync(Syscalls):
    """Everything else works."""

    @staticmethod
    def fsync(fd: int) -> None:
        pass


def ring_after(chunks: int) -> Ring:
    return Ring(capacity=CAPACITY).arrive(chunks)


def save_forever(root: Path, acknowledge: int, form: str, calls: Syscalls | None = None) -> None:
    """Go on from the newest generation; write a line to a descriptor for each one that is committed."""
    store = LocalStore(root, calls)
    with WriterLock(store):
        generations, saver = Generations(store, keep=2), ReplaySaver(form)  # type: ignore[arg-type]
        ring = Ring(capacity=CAPACITY)
        if generations.numbers():
            restored = generations.restore(lambda manifest: load_replay(store, manifest))
            generations.go_on_from(restored.manifest)
            ring = ring_after(restored.value.snapshot.state["next_chunk"])
        while True:
            generation = save(generations, ring.arrive(9).snapshot(), saver)
            os.write(acknowledge, f"{generation}\n".encode())


def check(root: Path, acknowledged: int) -> int:
    """What is restored was saved, and not before the last acknowledged generation; returns which it is."""
    store = LocalStore(root)
    generations = Generations(store)
    if not acknowledged and not generations.numbers():
        return 0
    found = generations.restore(lambda manifest: load_replay(store, manifest))
    assert found.manifest.generation >= acknowledged, (found.manifest.generation, acknowledged)
    assert not found.skipped, found.skipped
    check_equal(found.value.snapshot, ring_after(found.value.snapshot.state["next_chunk"]).snapshot())
    return found.manifest.generation


def killed_at(root: Path, form: str, seconds: float | None) -> tuple[int, bool, float]:
    """Fork a process that saves, and kill it some time later, or once it has acknowledged a generation.

    Returns the last generation that it acknowledged, whether a save was on its way, and how long it lived.
    """
    reading, writing = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            save_forever(root, writing, form)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = []
        if seconds is None:
            lines.append(pipe.readline())
        else:
            time.sleep(seconds)  # the point: a random moment
        lived = time.monotonic() - begun
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        lines += pipe.read().split()
    assert os.WIFSIGNALED(status), "the process ended by itself"
    assert os.WTERMSIG(status) == signal.SIGKILL
    unfinished = any(path.name.startswith(".tmp") for path in root.rglob("*"))
    return int(lines[-1]) if lines else 0, unfinished, lived


def main(root: Path, rounds: int, seed: int, form: str) -> None:
    choose = random.Random(seed)
    acknowledged, _, span = killed_at(root, form, None)  # how long a save takes on this machine
    busy = saves = 0
    for _ in range(rounds):
        last, unfinished, _ = killed_at(root, form, choose.uniform(0.0, span))
        saves += max(0, last - acknowledged)
        span *= 0.9 if last > acknowledged else 1.1  # so that about half of the kills come after a save
        acknowledged = max(acknowledged, last)
        busy += unfinished
        acknowledged = check(root, acknowledged)
    print(f"{rounds} kills, {busy} of them within a save, {saves} saves acknowledged")


if __name__ == "__main__":
    if sys.argv[1] == "save":
        calls = WithoutSync() if sys.argv[4:] == ["no-sync"] else None
        save_forever(Path(sys.argv[2]), sys.stdout.fileno(), sys.argv[3], calls)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

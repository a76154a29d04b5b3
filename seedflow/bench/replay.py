"""What the replay costs on real frames: ``seedflow bench replay``.

Frames of random play of Pong, Breakout and Seaquest fill a replay of R2D2's shape: sequences of 40 indices of
burn-in and 80 of training, one every 40 indices, with the state of an LSTM of 512 units. There are at least
200,000 distinct frames; to fill the replay they are inserted again and again under new lanes, each time
encoded and stored separately.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import pickle
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from seedflow.bench.atari_frames import Frames, play
from seedflow.bench.measure import machine
from seedflow.checkpoints import Generations, open_store
from seedflow.config import ReplayConfig
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.part import REPLAY
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import Sample, SequenceBatch
from seedflow.specs import ArraySpec

BATCH, LSTM, CHUNK = 64, 512, 40
FIELDS = (
    ArraySpec("observation", (84, 84), np.dtype(np.uint8)),
    ArraySpec("reward", (), np.dtype(np.float32)),
    ArraySpec("terminated", (), np.dtype(np.bool_)),
    ArraySpec("truncated", (), np.dtype(np.bool_)),
    ArraySpec("first", (), np.dtype(np.bool_)),
    ArraySpec("action", (), np.dtype(np.int64)),
)
STATE = tuple(ArraySpec(f"lstm/{name}", (LSTM,), np.dtype(np.float32)) for name in ("hidden", "cell"))
SPEC = ReplaySpec(FIELDS, STATE, chunk=CHUNK, burn_in=40, unroll=80, period=CHUNK)


@dataclass
class Cost:
    """What a piece of work took.

    Attributes
    ----------
    cpu, wall
        Seconds; CPU time is that of all threads of the process.
    extra_bytes
        The most that resident memory grew meanwhile, looked at every 5 ms.
    """

    cpu: float = 0.0
    wall: float = 0.0
    extra_bytes: int = 0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure what is done within."""
    cost, process, ended = Cost(), psutil.Process(), threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        while not ended.wait(0.005):
            cost.extra_bytes = max(cost.extra_bytes, process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    cpu, wall = time.process_time(), time.monotonic()
    try:
        yield cost
    finally:
        cost.cpu, cost.wall = time.process_time() - cpu, time.monotonic() - wall
        ended.set()
        watcher.join()


@dataclass
class Filler:
    """Inserts chunks of real frames with random core states; scalars are those of a plain episode."""

    frames: Frames
    inserted: int = 0
    _generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    _rest: dict[str, NDArray[Any]] = field(
        default_factory=lambda: {a.name: np.zeros((CHUNK, *a.shape), a.dtype) for a in FIELDS[1:]}
    )

    def __post_init__(self) -> None:
        self._chunks = self.frames.chunks(CHUNK)

    def insert(self, replay: Replay, sequences: int) -> None:
        """Insert until so many more sequences are complete."""
        lanes, steps = self.frames.rows.shape[:2]
        while sequences:
            lane, observation = next(self._chunks)
            if lane >= lanes and self.inserted % (lanes * (steps // CHUNK)) < lanes:
                replay.end_lane(lane - lanes)  # the round before
            state = [self._generator.standard_normal(LSTM, np.float32) for _ in STATE]
            fields = {"observation": observation, **self._rest}
            priority = float(self._generator.random())
            if replay.completes(lane):
                replay.insert(lane, fields, state, priority)
                sequences -= 1
            else:
                replay.insert(lane, fields, state)
            self.inserted += 1


def bench_replay(
    sequences: int = 100_000, distinct: int = 200_000, note: Callable[[str], None] = print
) -> dict[str, Any]:
    """Fill, sample, save and restore a replay; returns a JSON-able report.

    Parameters
    ----------
    sequences
        Capacity, and how many are inserted.
    distinct
        Distinct frames to play for.
    note
        Called with a line about what is going on.
    """
    note(f"playing for {distinct} distinct frames")
    with measured() as playing:
        frames = play(distinct)
    filler = Filler(frames)
    config = ReplayConfig(
        capacity=sequences, min_size=1, samples_per_insert=1.0, tolerance=1e12, decode_threads=1
    )
    report: dict[str, Any] = {
        "machine": machine(),
        "sequences": sequences,
        "frames": {
            "games": "Pong, Breakout, Seaquest, random play",
            "distinct": frames.distinct,
            "seconds": playing.wall,
            "times_inserted": sequences * CHUNK / frames.rows[..., 0, 0].size,
        },
    }
    replay = Replay(SPEC, config, seed=1, report=note)
    filler.insert(replay, 100)  # warms every code path
    note(f"inserting {sequences} sequences")
    process = psutil.Process()
    _give_back_freed_memory()
    before, held = process.memory_info().rss, len(replay)
    with measured() as filling:
        filler.insert(replay, sequences - held)
    report["fill"] = {
        "resident_growth_gb": (process.memory_info().rss - before) / 1e9 * sequences / (sequences - held),
        "plain_single_frames_gb": sequences * SPEC.length * 84 * 84 / 1e9,
        "cpu_seconds": filling.cpu,
        "raw_mb_per_cpu_second": (sequences - held) * CHUNK * 84 * 84 / 1e6 / filling.cpu,
        **{name.removeprefix("replay/"): value for name, value in replay.metrics().items()},
    }
    note("sampling")
    report["sample"] = _sample(replay, frames)
    note("saving and restoring")
    with tempfile.TemporaryDirectory(prefix="seedflow-bench-") as directory:
        report |= _save_and_restore(replay, filler, sequences, Path(directory) / "replay", config)
    replay.close()
    note("writing a part of the same arrays in other ways")
    report["peers_per_raw_gb"] = _peers(frames, max(1, sequences // 20))
    return report


def _give_back_freed_memory() -> None:
    """Let the C library return what playing has freed: the replay would take it unseen (malloc_trim(3))."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _sample(replay: Replay, frames: Frames, rounds: int = 15) -> dict[str, float]:
    """CPU time of drawing and decoding a batch, and of copying the same bytes from plain arrays."""
    batch = SequenceBatch(SPEC, BATCH)
    target = np.empty_like(batch.fields["observation"])
    generator = np.random.default_rng(2)
    lanes, steps = frames.rows.shape[:2]
    ours, plain = [], []
    for _ in range(rounds):
        cpu = time.process_time()
        assert isinstance(replay.sample(batch), Sample)
        ours.append(time.process_time() - cpu)
        places = zip(
            generator.integers(0, lanes, BATCH),
            generator.integers(0, steps - SPEC.length, BATCH),
            strict=True,
        )
        cpu = time.process_time()
        for row, (lane, begin) in enumerate(places):
            target[row] = frames.rows[lane, begin : begin + SPEC.length]
        plain.append(time.process_time() - cpu)
    return {
        "cpu_ms": 1e3 * statistics.median(ours),
        "raw_copy_cpu_ms": 1e3 * statistics.median(plain),
        "ratio": statistics.median(ours) / statistics.median(plain),
        "batch_mb": batch.nbytes / 1e6,
    }


def _save_and_restore(
    replay: Replay, filler: Filler, sequences: int, directory: Path, config: ReplayConfig
) -> dict[str, Any]:
    store = open_store(directory)
    generations, saver = Generations(store, keep=2), ReplaySaver()
    report: dict[str, Any] = {
        "longest_pause_ms_without_save": _longest_pause(replay, lambda: time.sleep(3.0))
    }

    def save() -> None:
        snapshot = replay.snapshot()
        with generations.draft() as draft:
            draft.add(REPLAY, saver.write(draft, snapshot))
            draft.commit({})

    for name, more in (("full_save", 0), ("save_of_5_percent", sequences // 20)):
        filler.insert(replay, more)
        there = _bytes(directory)
        with measured() as cost:
            pause = _longest_pause(replay, save)
        report[name] = {
            "written_mb": (_bytes(directory) - there) / 1e6,
            "wall_seconds": cost.wall,
            "extra_mb": cost.extra_bytes / 1e6,
            "longest_pause_ms": pause,
            "lock_ms": replay.metrics()["replay/snapshot_lock_ms"],
            "files": sum(path.is_file() for path in directory.rglob("*")),
        }
    # Once more without a sampling thread beside it, for the CPU time of saving alone.
    filler.insert(replay, sequences // 20)
    with measured() as cost:
        save()
    report["save_of_5_percent"]["cpu_seconds"] = cost.cpu
    alone = Generations(open_store(directory.with_name("alone")), keep=2)
    with measured() as cost, alone.draft() as draft:
        draft.add(REPLAY, ReplaySaver().write(draft, replay.snapshot()))
        draft.commit({})
    report["full_save"] |= {"cpu_seconds": cost.cpu, "extra_mb": cost.extra_bytes / 1e6}
    with measured() as cost:
        found = alone.restore(
            lambda manifest: load_replay(open_store(directory.with_name("alone")), manifest)
        )
        restored = Replay(SPEC, config, seed=1, snapshot=found.value.snapshot, report=lambda text: None)
    report["restore"] = {
        "cpu_seconds": cost.cpu,
        "wall_seconds": cost.wall,
        "extra_mb": cost.extra_bytes / 1e6,
        "sequences": len(restored),
    }
    restored.close()
    return report


def _longest_pause(replay: Replay, work: Callable[[], None]) -> float:
    """Milliseconds that one small sample took at most while `work` was done beside it."""
    longest, ended, batch = 0.0, threading.Event(), SequenceBatch(SPEC, 1)

    def sample() -> None:
        nonlocal longest
        while not ended.is_set():
            began = time.monotonic()
            replay.sample(batch)
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.001)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    return 1e3 * longest


def _peers(frames: Frames, chunks: int) -> dict[str, Any]:
    """Seconds of CPU and megabytes written for each raw gigabyte of observations, the usual ways."""
    taken = list(itertools.islice(frames.chunks(CHUNK), chunks))
    array = np.stack([observation for _, observation in taken])
    gigabytes = array.nbytes / 1e9
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="seedflow-bench-") as directory:
        path = Path(directory) / "pickle"
        with measured() as cost, open(path, "wb") as file:
            pickle.dump(array, file, protocol=5)
        report["pickle"] = _per_gigabyte(cost, path.stat().st_size, gigabytes)
        try:
            import zarr
        except ImportError as error:
            report["zarr-python"] = f"not installed: {error}"
            return report
        path = Path(directory) / "plain.zarr"
        with measured() as cost:
            stored = zarr.create_array(
                path, shape=array.shape, chunks=(1, *array.shape[1:]), dtype=array.dtype
            )
            stored[:] = array
        report["zarr-python"] = _per_gigabyte(cost, _bytes(path), gigabytes)
    return report


def _per_gigabyte(cost: Cost, written: int, gigabytes: float) -> dict[str, float]:
    return {
        "cpu_seconds": cost.cpu / gigabytes,
        "wall_seconds": cost.wall / gigabytes,
        "written_mb": written / 1e6 / gigabytes,
        "extra_mb": cost.extra_bytes / 1e6 / gigabytes,
    }


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())

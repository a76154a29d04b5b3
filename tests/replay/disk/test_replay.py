"""A replay that comes from a checkpoint on disk goes on as the one that was saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seedflow.checkpoints import Generations, LocalStore
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from tests.replay.disk.ring import save
from tests.replay.rig import beginnings, fill, make_replay, make_spec


def learn(replay: Replay, batches: int) -> list[tuple[list[int], list[float], list[tuple[int, int]]]]:
    """Sample, look at what comes, and give it new priorities."""
    batch = SequenceBatch(replay.spec, 6)
    drawn = []
    for _ in range(batches):
        sample = replay.sample(batch)
        assert sample
        drawn.append((sample.generations.tolist(), sample.weights.tolist(), beginnings(batch)))
        replay.update_priorities(sample.generations, 1.0 + sample.generations % 7 / 3)
    return drawn


@pytest.mark.parametrize("form", ["zip", "directory"])
@pytest.mark.parametrize("chunks", [4, 30], ids=["partly full", "wrapped"])
def test_it_draws_the_same_as_without_the_interruption(tmp_path: Path, form: Form, chunks: int) -> None:
    spec = make_spec()
    store = LocalStore(tmp_path)
    generations, saver = Generations(store), ReplaySaver(form)
    with_saves, without = (make_replay(spec, capacity=12) for _ in range(2))
    drawn: list[object] = []
    expected: list[object] = []
    for begin in (0, chunks, 2 * chunks):
        for lane in (begin * 10, begin * 10 + 1):
            for replay in (with_saves, without):
                fill(replay, lane, range(chunks))
                replay.end_lane(lane)  # as a restored replay's lanes have ended
        drawn += learn(with_saves, 3)
        expected += learn(without, 3)
        save(generations, with_saves.snapshot(), saver)
        with_saves.close()
        generations, saver = Generations(store), ReplaySaver(form)
        restored = generations.restore(lambda manifest: load_replay(store, manifest, spec=spec, capacity=12))
        generations.go_on_from(restored.manifest)
        with_saves = make_replay(spec, seed=99, snapshot=restored.value.snapshot, capacity=12)
    drawn += learn(with_saves, 5)
    expected += learn(without, 5)
    assert drawn == expected
    assert with_saves.snapshot().state == without.snapshot().state
    for replay in (with_saves, without):
        replay.close()


@pytest.mark.parametrize("capacity", [6, 12, 24])
def test_another_capacity_keeps_the_newest_with_their_priorities(tmp_path: Path, capacity: int) -> None:
    spec = make_spec()
    replay = make_replay(spec, capacity=12)
    for lane in range(3):
        fill(replay, lane, range(10))
    learn(replay, 4)
    saved = replay.snapshot()
    store = LocalStore(tmp_path)
    save(Generations(store), saved)
    replay.close()
    loaded = Generations(store).restore(lambda m: load_replay(store, m, spec=spec, capacity=capacity)).value
    again = make_replay(spec, snapshot=loaded.snapshot, capacity=capacity)
    found, count = again.snapshot().sequences, min(capacity, 12)
    assert found.generation.tolist() == saved.sequences.generation[-count:].tolist()
    assert np.array_equal(found.priority, saved.sequences.priority[-count:])
    assert again.metrics().keys() == replay.metrics().keys()
    learn(again, 2)
    fill(again, 7, range(30))
    assert len(again) == capacity
    again.close()

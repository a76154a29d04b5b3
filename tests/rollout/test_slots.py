"""The slot pool, step by step."""

import numpy as np
import pytest

from seedflow.errors import SeedflowError
from seedflow.rollout.slots import SlotPool


class Notebook:
    """Writes values into the slots that a pool names, as a storage would."""

    def __init__(self, pool: SlotPool, slots: int) -> None:
        self.pool = pool
        self.cells = np.full((slots, pool.unroll + 1), -1)
        self.ready: dict[int, list[list[int]]] = {}

    def batch(self, *steps: tuple[int, int]) -> None:
        envs = np.array([env for env, _ in steps])
        placement = self.pool.place(envs)
        self.cells[placement.slots, placement.times] = [value for _, value in steps]
        done = self.pool.advance(envs)
        self.cells[done.following, 0] = self.cells[done.ready, -1]
        for row, slot in zip(done.rows, done.ready, strict=True):
            self.ready.setdefault(int(envs[row]), []).append(self.cells[slot].tolist())


def test_unrolls_overlap_by_one_index_and_a_new_lease_starts_afresh() -> None:
    notes = Notebook(SlotPool(envs=4, slots=12, unroll=3), slots=12)
    notes.batch((0, 10), (2, 30), (1, 20))
    notes.batch((0, 11), (2, 31), (3, 40))
    notes.batch((0, 12), (2, 32), (3, 41))
    assert notes.ready == {}
    notes.pool.drop(np.array([2]))
    notes.batch((0, 13), (1, 21), (2, 33))
    assert notes.ready == {0: [[10, 11, 12, 13]]}
    notes.batch((0, 14), (2, 34), (3, 42))
    notes.batch((0, 15), (1, 22), (2, 35))
    notes.batch((0, 16), (1, 23), (2, 36))
    assert notes.ready == {
        0: [[10, 11, 12, 13], [13, 14, 15, 16]],
        1: [[20, 21, 22, 23]],
        2: [[33, 34, 35, 36]],
    }


def test_an_env_named_twice_is_refused_and_harms_nothing() -> None:
    pool = SlotPool(envs=2, slots=4, unroll=3)
    with pytest.raises(SeedflowError, match=r"\[1\] appear twice"):
        pool.place(np.array([1, 0, 1]))
    assert pool.free == 4
    assert pool.place(np.array([0, 1])).times.tolist() == [0, 0]


def test_too_few_slots_are_an_error_before_anything_changes() -> None:
    pool = SlotPool(envs=3, slots=2, unroll=1)
    envs = np.array([0, 1, 2])
    assert pool.needed(envs) == 3
    with pytest.raises(SeedflowError, match="3 unroll slots are needed and 2 are free"):
        pool.place(envs)
    assert pool.free == 2


def test_every_slot_is_in_one_place() -> None:
    rng = np.random.default_rng(0)
    envs, slots = 6, 20
    pool = SlotPool(envs, slots, unroll=2)
    away: list[int] = []
    held: set[int] = set()
    for _ in range(500):
        batch = rng.permutation(envs)[: rng.integers(1, envs)]
        if pool.needed(batch) <= pool.free:
            held |= set(pool.place(batch).slots.tolist())
            done = pool.advance(batch)
            held = (held - set(done.ready.tolist())) | set(done.following.tolist())
            away += done.ready.tolist()
        if rng.random() < 0.3:
            pool.put_back(away)
            away = []
        assert len(held) + len(away) + pool.free == slots
        assert len(set(away) | held) == len(away) + len(held)

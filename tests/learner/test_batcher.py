"""Which groups go into a batch, and when."""

from seedflow.learner.batcher import Batcher, PendingGroup
from seedflow.rpc.leases import Lease


def lease(number: int, envs: int = 4) -> Lease:
    ids = range(number * 2 * envs, (number + 1) * 2 * envs)
    return Lease(number, number, "train", number, 0, ids, 2, envs)


def everything(pending: PendingGroup) -> bool:
    return True


def taken(batcher: Batcher, now: float, fits=everything) -> list[tuple[int, int]]:
    return [(p.lease.id, p.group) for p in batcher.take(now, fits)]


def test_one_group_is_enough_for_a_batch() -> None:
    batcher = Batcher(max_batch=8, min_batch=1, deadline=0.0)
    assert batcher.due_in(0.0) is None
    assert taken(batcher, 0.0) == []
    batcher.add(lease(1), 0, now=0.0)
    assert batcher.due_in(0.0) == 0.0
    assert taken(batcher, 0.0) == [(1, 0)]


def test_oldest_groups_go_first_and_a_batch_is_never_too_large() -> None:
    batcher = Batcher(max_batch=8, min_batch=1, deadline=0.0)
    for number in (3, 1, 2):
        batcher.add(lease(number), 1, now=0.0)
    assert taken(batcher, 0.0) == [(3, 1), (1, 1)]
    assert taken(batcher, 0.0) == [(2, 1)]


def test_a_minimum_batch_waits_for_its_deadline_only() -> None:
    batcher = Batcher(max_batch=8, min_batch=8, deadline=0.5)
    batcher.add(lease(1), 0, now=10.0)
    assert taken(batcher, 10.2) == []
    assert batcher.due_in(10.25) == 0.25
    assert taken(batcher, 10.5) == [(1, 0)]
    batcher.add(lease(1), 0, now=20.0)
    batcher.add(lease(2), 0, now=20.0)
    assert taken(batcher, 20.0) == [(1, 0), (2, 0)]


def test_a_group_that_does_not_fit_keeps_its_place_and_holds_up_nobody() -> None:
    batcher = Batcher(max_batch=8, min_batch=1, deadline=0.0)
    for number in (1, 2, 3):
        batcher.add(lease(number), 0, now=0.0)
    assert taken(batcher, 0.0, lambda p: p.lease.id != 1) == [(2, 0), (3, 0)]
    assert taken(batcher, 0.0) == [(1, 0)]


def test_groups_of_a_lost_lease_are_forgotten() -> None:
    batcher = Batcher(max_batch=8, min_batch=1, deadline=0.0)
    batcher.add(lease(1), 0, now=0.0)
    batcher.add(lease(2), 0, now=0.0)
    batcher.drop(lease(1))
    assert taken(batcher, 0.0) == [(2, 0)]

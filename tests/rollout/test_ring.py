"""Index rings between two threads."""

import threading

import pytest

from seedflow.rollout.ring import IndexRing


def test_what_is_put_is_taken_in_order_by_another_thread() -> None:
    ring, back = IndexRing(4), IndexRing(4)
    taken: list[int] = []

    def consume() -> None:
        while len(taken) < 1000:
            got = ring.take(3)
            if not got:
                ring.wait(10.0)
            taken.extend(got)
            back.put(got)

    consumer = threading.Thread(target=consume)
    consumer.start()
    allowed = 4
    for i in range(1000):
        while not allowed:
            back.wait(10.0)
            allowed += len(back.take(4))
        ring.put([i])
        allowed -= 1
    consumer.join(30.0)
    assert taken == list(range(1000))
    ring.close()
    back.close()


def test_a_full_ring_says_so() -> None:
    ring = IndexRing(2)
    ring.put([1, 2])
    with pytest.raises(OverflowError, match="2 indices is full"):
        ring.put([3])
    assert ring.take(5) == [1, 2]
    ring.close()

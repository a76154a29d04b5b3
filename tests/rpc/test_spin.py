"""A wait begins awake where that pays, and asleep elsewhere."""

from __future__ import annotations

from seedflow.rpc.spin import RETRY, SECONDS, Spin


class Peer:
    """Answers after some looks; each takes a microsecond."""

    def __init__(self, answers_after: int) -> None:
        self.answers_after = answers_after
        self.now, self.looks = 0.0, 0

    def clock(self) -> float:
        return self.now

    def find(self) -> str | None:
        self.now += 1e-6
        self.looks += 1
        return "answer" if self.looks >= self.answers_after else None

    def wait(self, spin: Spin) -> int:
        """Look for one answer; returns how often."""
        self.looks = 0
        spin.look(self.find)
        return self.looks


def test_what_answers_at_once_is_waited_for_awake() -> None:
    peer = Peer(answers_after=10)
    spin = Spin(peer.clock)
    assert {peer.wait(spin) for _ in range(1000)} == {10}


def test_one_look_takes_no_longer_than_its_limit() -> None:
    peer = Peer(answers_after=10**9)
    assert peer.wait(Spin(peer.clock)) <= SECONDS / 1e-6 + 1


def test_what_answers_late_is_soon_waited_for_asleep_but_tried_now_and_then() -> None:
    peer = Peer(answers_after=10**9)
    spin = Spin(peer.clock)
    looks = [peer.wait(spin) for _ in range(2000)]
    assert all(looks[:10])
    assert sum(map(bool, looks[-10 * RETRY :])) == 10


def test_a_peer_that_becomes_quick_is_noticed() -> None:
    peer = Peer(answers_after=10**9)
    spin = Spin(peer.clock)
    for _ in range(200):
        peer.wait(spin)
    peer.answers_after = 3
    looks = [peer.wait(spin) for _ in range(20 * RETRY)]
    assert looks[-100:] == [3] * 100

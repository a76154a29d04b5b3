"""A learner that stands still is found by its supervisor, and one that only waits is left alone."""

from __future__ import annotations

import pytest

from seedflow.learner.pulse import LONGEST_PAUSE, SIZE, Pulse, Stillness


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A role process as far as its supervisor looks at it."""

    def __init__(self) -> None:
        self.memory = bytearray(SIZE)
        self.stopped = False

    def board(self) -> bytes:
        return bytes(self.memory)

    def is_stopped(self) -> bool:
        return self.stopped


class Rig:
    """A process with a pulse, and who watches it."""

    def __init__(self, hang_seconds: float | None = 300.0) -> None:
        self.clock, self.process = Clock(), Process()
        self.pulse = Pulse(self.process.memory, self.clock)
        self.watch = Stillness(self.process, hang_seconds, 30.0, self.clock)  # type: ignore[arg-type]

    def after(self, seconds: float, *beating: str) -> str:
        """What is seen after so long, of a process of which these loops go on."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 1.0
            for loop in beating:
                self.pulse.beat(loop)
            if seen := self.watch.look():
                return seen
        return ""


def test_a_loop_whose_turn_does_not_end_is_named_and_one_that_turns_is_not() -> None:
    rig = Rig()
    rig.pulse.beat("training")
    assert rig.after(299.0, "inference") == ""
    assert rig.after(2.0, "inference") == "its training loop stood still for 300 s (learner.hang_seconds)"


def test_a_loop_that_has_not_begun_or_has_ended_stands_for_nothing() -> None:
    rig = Rig()
    assert rig.after(1000.0) == ""
    rig.pulse.beat("training")
    rig.pulse.end("training")
    assert rig.after(1000.0) == ""


def test_without_a_limit_a_turn_may_take_for_ever() -> None:
    rig = Rig(hang_seconds=None)
    rig.pulse.beat("training")
    assert rig.after(10_000.0) == ""


def test_a_process_that_is_stopped_is_found_sooner() -> None:
    rig = Rig()
    assert rig.after(100.0, "inference") == ""
    rig.process.stopped = True
    assert rig.after(30.0) == ""
    assert rig.after(2.0) == "its process was stopped for 30 s (inference.lease_seconds)"


def test_one_that_goes_on_in_time_is_left_alone() -> None:
    rig = Rig()
    for _ in range(3):
        rig.process.stopped = True
        assert rig.after(20.0) == ""
        rig.process.stopped = False
        assert rig.after(1.0) == ""


@pytest.mark.parametrize("stopped", [True, False])
def test_a_watcher_that_was_stopped_itself_begins_anew(stopped: bool) -> None:
    """All processes of a job are, where a batch system suspends it: who wakes up first judges nobody."""
    rig = Rig()
    rig.pulse.beat("inference")
    rig.process.stopped = stopped
    assert rig.after(1.0) == ""
    rig.clock.now += 10_000.0
    assert rig.watch.look() == ""
    assert rig.after(LONGEST_PAUSE) == ""

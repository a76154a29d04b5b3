"""What an actor is doing, written by one process and read by another; and a call that takes too long."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.actor import activity
from seedflow.actor.activity import SIZE, Activity
from seedflow.actor.watchdog import Watchdog
from seedflow.envs import numbered
from seedflow.errors import EnvironmentFault
from seedflow.roles.messages import BOARD_SIZE


def test_it_fits_the_board_of_a_role_and_knows_nobody_by_the_same_number() -> None:
    assert SIZE == BOARD_SIZE
    assert activity.NOBODY == numbered.NOBODY


@given(
    st.sampled_from(["__init__", "reset", "step", "close"]),
    st.integers(0, 254),
    st.integers(0, 10**6),
    st.integers(1, 4096),
    st.data(),
)
def test_another_process_reads_the_call_that_is_made(
    call: str, group: int, start: int, envs: int, data: st.DataObject
) -> None:
    memory = mmap.mmap(-1, SIZE)
    writer = Activity(memory, clock=lambda: 5.0)
    reader = Activity(bytes(memory))
    assert reader.describe() == ""
    writer.begin(call, group, range(start, start + envs))  # type: ignore[arg-type]
    words = f"{call} of group {group} (environments {start} to {start + envs - 1})"
    assert Activity(bytes(memory)).describe() == words
    writer.position[0] = number = data.draw(st.integers(start, start + envs - 1))
    assert Activity(bytes(memory)).describe() == f"{words}, environment {number}"
    assert not Activity(bytes(memory)).overdue(10.0, now=15.0)
    assert Activity(bytes(memory)).overdue(10.0, now=15.1)
    writer.end()
    assert Activity(bytes(memory)).describe() == ""
    assert not Activity(bytes(memory)).overdue(10.0, now=1e9)


@given(st.binary(min_size=SIZE, max_size=SIZE))
def test_whatever_a_crash_has_left_is_read_without_a_fault(content: bytes) -> None:
    watched = Activity(content)
    assert isinstance(watched.describe(), str)
    watched.overdue(1.0)


def test_the_clock_is_the_same_in_every_process() -> None:
    memory = bytearray(SIZE)
    watched = Activity(memory)
    watched.begin("step", 0, range(1))
    code = (
        "import sys; from seedflow.actor.activity import Activity; "
        "a = Activity(bytes.fromhex(sys.argv[1])); print(a.overdue(60.0), a.overdue(0.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, bytes(memory).hex()], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]


def test_a_call_that_does_not_return_is_found_with_its_place() -> None:
    watched = Activity(bytearray(SIZE))
    found: list[EnvironmentFault] = []
    hanging = threading.Event()

    def wait_for_the_simulator() -> None:
        assert hanging.wait(60.0)

    def found_one(fault: EnvironmentFault) -> None:
        found.append(fault)
        hanging.set()

    with Watchdog(watched, 0.05, found_one):
        watched.begin("reset", 1, range(4, 8))
        watched.position[0] = 6
        wait_for_the_simulator()
        watched.end()
    (fault,) = found
    assert str(fault).startswith("reset of group 1 (environments 4 to 7), environment 6 has not returned for")
    assert "actor.env_timeout_seconds" in str(fault)
    assert "wait_for_the_simulator" in fault.__notes__[0]
    assert fault.identity == "reset has not returned"


@pytest.mark.parametrize("seconds", [None, 1000.0])
def test_nothing_is_found_where_nothing_hangs(seconds: float | None) -> None:
    watched = Activity(bytearray(SIZE), clock=lambda: 0.0)
    with Watchdog(watched, seconds, lambda fault: pytest.fail(str(fault))):
        watched.begin("step", 0, range(1))
        watched.end()
    assert "actor-watchdog" not in [thread.name for thread in threading.enumerate()]

"""Requests to end a program: raised once, put off where they would do harm."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from seedflow.interrupts import (
    ENDING,
    PREEMPTION,
    Signalled,
    also_ended_by,
    between_steps,
    end_on_signals,
    ending_on_signals,
    sigterm_as_exit,
    starting_processes,
    uninterrupted,
)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Signals do what they do in a new process, before and after."""
    before = {number: signal.getsignal(number) for number in ENDING}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_is_raised_and_the_next_ones_are_not(number: signal.Signals) -> None:
    with ending_on_signals():
        with pytest.raises(Signalled) as raised:
            signal.raise_signal(number)
        assert raised.value.number == number
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_impatience_is_answered_and_heard_at_the_third_ctrl_c() -> None:
    script = """
import signal
from seedflow.interrupts import end_on_signals, uninterrupted
end_on_signals()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    print("ending", flush=True)
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
    print("not reached", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (130, "ending\n")
    assert done.stderr == "Ending in order; press Ctrl-C once more to end at once.\n"


def test_forked_children_leave_ctrl_c_to_their_parent() -> None:
    script = """
import os, signal
from seedflow.interrupts import end_on_signals
end_on_signals()
if os.fork() == 0:
    print(*(signal.getsignal(number).name for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)))
else:
    os.wait()
    print(callable(signal.getsignal(signal.SIGTERM)))
"""
    output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "SIG_IGN SIG_DFL SIG_DFL\nTrue\n"


def test_nothing_is_raised_while_a_program_ends_anyway() -> None:
    with ending_on_signals():
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        handler.unwinding = True  # type: ignore[attr-defined]
        signal.raise_signal(signal.SIGTERM)


def test_what_ignores_a_signal_or_handles_it_goes_on_to_do_so() -> None:
    seen: list[int] = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    end_on_signals()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_sigterm_is_an_exit_once() -> None:
    with sigterm_as_exit():
        with pytest.raises(SystemExit) as raised:
            signal.raise_signal(signal.SIGTERM)
        assert raised.value.code == 143
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("put_off", [uninterrupted, starting_processes, between_steps])
def test_a_signal_waits_for_the_end_of_the_block(put_off: type[AbstractContextManager[object]]) -> None:
    done: list[str] = []

    def block() -> None:
        with put_off():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["the rest"]


def test_a_signal_that_waited_is_raised_on_top_of_an_error() -> None:
    def block() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            raise LookupError("no such level")

    with pytest.raises(KeyboardInterrupt) as raised:
        block()
    assert isinstance(raised.value.__context__, LookupError)


def test_a_loop_sees_that_a_signal_waits_and_a_second_one_acts_at_once() -> None:
    seen: list[bool] = []

    def block() -> None:
        with between_steps() as interrupts:
            seen.append(interrupts.waiting)
            signal.raise_signal(signal.SIGINT)
            seen.append(interrupts.waiting)
            signal.raise_signal(signal.SIGTERM)
            seen.append(True)

    with ending_on_signals(), pytest.raises(Signalled) as raised:
        block()
    assert raised.value.number == signal.SIGTERM
    assert seen == [False, True]


def test_the_third_signal_ends_what_was_not_to_be_interrupted() -> None:
    done: list[int] = []

    def block() -> None:
        with uninterrupted():
            for count in range(4):
                done.append(count)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [0, 1, 2]


def test_processes_that_are_started_uninterrupted_do_not_see_ctrl_c() -> None:
    script = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with starting_processes():
        output = subprocess.check_output([sys.executable, "-c", script], text=True)
    assert output == "True\n"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_other_threads_are_left_alone() -> None:
    def work() -> None:
        with sigterm_as_exit(), starting_processes(), between_steps() as interrupts:
            assert not interrupts.waiting
        finished.set()

    finished = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert finished.is_set()


@pytest.mark.parametrize("name", PREEMPTION)
def test_an_announced_preemption_does_what_sigterm_does(name: str) -> None:
    number = PREEMPTION[name]
    before = signal.getsignal(number)
    with ending_on_signals(), also_ended_by(name), pytest.raises(Signalled) as raised:
        signal.raise_signal(number)
    assert raised.value.number == number
    assert signal.getsignal(number) == before
    with sigterm_as_exit(), also_ended_by(name), pytest.raises(SystemExit), uninterrupted():
        signal.raise_signal(number)
    with also_ended_by(name):
        assert signal.getsignal(number) == before, "nobody would end the run in order"
    with ending_on_signals(), also_ended_by(None):
        assert signal.getsignal(number) == before


def test_what_is_forked_ignores_an_announced_preemption() -> None:
    script = """
import os, signal
from seedflow.interrupts import also_ended_by, end_on_signals
end_on_signals()
with also_ended_by("SIGUSR1"):
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGUSR1)
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("7\n", "")

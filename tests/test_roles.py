"""Roles as real processes: messages, stopping, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seedflow.errors import TransportError
from seedflow.roles import RoleProcess, failure
from seedflow.roles.messages import MAX_LINE, decode, encode

PREAMBLE = """
import os, signal, subprocess, sys, threading, time
from seedflow.roles import run_role

def start_child(**options):
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], **options)
"""

Start = Callable[..., RoleProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a role whose `main(channel)` is given as text."""
    with contextlib.ExitStack() as stack:

        def start(body: str, message: dict[str, Any] | None = None) -> RoleProcess:
            lines = "\n".join("    " + line for line in body.strip().splitlines())
            text = (
                f"{PREAMBLE}\ndef main(channel):\n{lines}\n\nif __name__ == '__main__':\n    run_role(main)\n"
            )
            (tmp_path / "toy_role.py").write_text(text)
            env = {"PYTHONPATH": str(tmp_path)}
            return stack.enter_context(RoleProcess("toy_role", message or {}, tmp_path / "toy.log", env))

        yield start


def wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(0.02)
    return value


def wait_message(role: RoleProcess, kind: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        for message in role.poll_messages():
            if message["kind"] == kind:
                return message
        assert role.returncode() is None, role.log_tail()
        return None

    message: dict[str, Any] = wait_for(find)
    return message


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


REPORT_AND_WAIT = """
channel.send({"kind": "state", "state": "running", "pids": pids})
assert channel.stop_requested.wait(60)
return 0
"""


def test_start_message_reaches_the_role_and_its_answer_comes_back(start: Start) -> None:
    role = start(
        'channel.send({"kind": "done", "sum": sum(channel.start["numbers"])}); return 0', {"numbers": [1, 2]}
    )
    assert wait_message(role, "done")["sum"] == 3
    assert wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 0


def test_start_message_larger_than_a_pipe_arrives(start: Start) -> None:
    role = start(
        'channel.send({"kind": "done", "n": len(channel.start["env_fn"])}); return 0',
        {"env_fn": "x" * 3_000_000},
    )
    assert wait_message(role, "done")["n"] == 3_000_000


def test_token_stands_in_no_argument_environment_or_log(start: Start) -> None:
    token = "5eedf10a" * 8
    role = start("pids = []; print('hello')" + REPORT_AND_WAIT, {"token": token})
    wait_message(role, "state")
    for name in ("cmdline", "environ"):
        assert token.encode() not in Path(f"/proc/{role.pid}/{name}").read_bytes()
    assert role.stop(30) == 0
    assert token not in role.log_tail() + repr(role)


def test_log_file_gets_what_the_role_and_its_children_print(start: Start, tmp_path: Path) -> None:
    role = start(
        "print('from python'); os.system('echo from a child'); print('oh', file=sys.stderr); return 0"
    )
    wait_for(lambda: role.returncode() is not None)
    assert role.log_tail().splitlines() == ["from python", "from a child", "oh"]
    assert role.log_tail(1) == "oh"
    assert (tmp_path / "toy.log").stat().st_mode & 0o777 == 0o600
    assert role.poll_messages() == []


@pytest.mark.parametrize("how", ["message", "SIGTERM", "SIGTERM twice"])
def test_role_stops_in_order_when_asked(start: Start, how: str) -> None:
    role = start("pids = []" + REPORT_AND_WAIT)
    wait_message(role, "state")
    if how != "message":
        for _ in how.split():
            os.kill(role.pid, signal.SIGTERM)
        wait_for(lambda: role.returncode() is not None)
    assert role.stop(30) == 0
    assert role.stop(30) == 0


def test_role_hears_signals_that_its_supervisor_has_blocked(start: Start) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        role = start("pids = []" + REPORT_AND_WAIT)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    wait_message(role, "state")
    os.kill(role.pid, signal.SIGTERM)
    assert wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 0


def test_interrupt_is_left_to_the_driver(start: Start) -> None:
    role = start("pids = []" + REPORT_AND_WAIT)
    wait_message(role, "state")
    os.kill(role.pid, signal.SIGINT)
    assert role.stop(30) == 0


def test_role_that_does_not_stop_is_killed_after_the_grace(start: Start) -> None:
    role = start('channel.send({"kind": "state"}); time.sleep(600)')
    wait_message(role, "state")
    assert role.stop(0.2) == 128 + signal.SIGKILL


def test_role_that_a_signal_has_stopped_is_told_from_one_that_waits(start: Start) -> None:
    role = start("channel.send({'kind': 'ready'}); channel.stop_requested.wait(60); return 0")
    wait_message(role, "ready")
    assert not role.is_stopped()
    os.kill(role.pid, signal.SIGSTOP)
    wait_for(role.is_stopped)
    os.kill(role.pid, signal.SIGCONT)
    wait_for(lambda: not role.is_stopped())
    assert role.stop(30) == 0
    assert not role.is_stopped()


def test_exception_is_reported_with_its_traceback(start: Start) -> None:
    role = start("raise ZeroDivisionError('seven by zero')")
    message = wait_message(role, "failed")
    assert (message["exception"], message["message"], message["retryable"]) == (
        "ZeroDivisionError",
        "seven by zero",
        True,
    )
    assert "toy_role.py" in message["traceback"]
    wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 1
    assert "seven by zero" in role.log_tail()


def test_crash_leaves_its_signal_and_where_it_was(start: Start) -> None:
    role = start("os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)")
    wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 128 + signal.SIGSEGV
    assert "toy_role.py" in role.log_tail()


CHILDREN = """
import multiprocessing
forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True)
forked.start()
pids = [os.getpid(), start_child().pid, start_child(start_new_session=True).pid, forked.pid]
"""


def test_children_end_with_a_role_that_returns(start: Start) -> None:
    role = start(CHILDREN + REPORT_AND_WAIT)
    pids = wait_message(role, "state")["pids"]
    assert all(is_running(pid) for pid in pids)
    assert role.stop(30) == 0
    assert not any(is_running(pid) for pid in pids)


def test_children_end_with_a_role_that_is_killed(start: Start) -> None:
    role = start(CHILDREN + REPORT_AND_WAIT)
    pids = wait_message(role, "state")["pids"]
    os.kill(role.pid, signal.SIGKILL)
    wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 128 + signal.SIGKILL
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("ending", [REPORT_AND_WAIT, REPORT_AND_WAIT.replace("assert", "time.sleep(600) #")])
def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path, ending: str) -> None:
    body = "\n".join("    " + line for line in (CHILDREN + ending).strip().splitlines())
    (tmp_path / "toy_role.py").write_text(f"{PREAMBLE}\ndef main(channel):\n{body}\n\nrun_role(main)\n")
    supervisor = f"""
import json, pathlib, threading, time
from seedflow.roles import RoleProcess
roles = []
def launch():
    roles.append(RoleProcess("toy_role", {{}}, pathlib.Path({str(tmp_path / "toy.log")!r})))
thread = threading.Thread(target=launch)  # the role outlives the thread that has started it
thread.start(); thread.join()
while True:
    for message in roles[0].poll_messages():
        print(json.dumps(message), flush=True)
    time.sleep(0.02)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    parent = subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE, env=env)
    assert parent.stdout is not None
    try:
        pids = json.loads(parent.stdout.readline())["pids"]
        assert all(is_running(pid) for pid in pids)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_metrics_give_way_when_the_supervisor_does_not_read(start: Start) -> None:
    role = start("""
for step in range(3000):
    channel.send({"kind": "metrics", "values": {"step": step, "padding": "x" * 1000}})
channel.send({"kind": "state", "dropped": channel.dropped})
while not channel.flush(1.0):
    pass
return 0
""")
    # The log says nothing; the role has returned to waiting once its last message is queued.
    messages: list[dict[str, Any]] = []

    def done() -> bool:
        messages.extend(role.poll_messages())
        return any(message["kind"] == "state" for message in messages)

    wait_for(done)
    steps = [message["values"]["step"] for message in messages if message["kind"] == "metrics"]
    assert steps == sorted(steps)
    assert steps[-1] == 2999
    assert len(steps) + messages[-1]["dropped"] == 3000


def test_line_that_is_no_message_is_shown_in_the_error(start: Start) -> None:
    role = start("""
channel.send({"kind": "state", "state": "running"}); channel.flush(10)
os.write(channel._out, b"surprise!\\n")
channel.send({"kind": "done"}); return 0
""")
    wait_for(lambda: role.returncode() is not None)
    assert [message["kind"] for message in role.poll_messages()] == ["state"]
    with pytest.raises(TransportError, match=r"surprise!.*expected one JSON object"):
        role.poll_messages()
    assert [message["kind"] for message in role.poll_messages()] == ["done"]


def test_role_learns_that_the_learner_has_moved(start: Start) -> None:
    role = start("""
channel.send({"kind": "state", "endpoint": channel.endpoint})
while channel.endpoint != {"gateway": "b:2"}:
    time.sleep(0.01)
return 0
""")
    assert wait_message(role, "state")["endpoint"] is None
    role.send({"kind": "endpoint", "endpoint": {"gateway": "a:1"}})
    role.send({"kind": "endpoint", "endpoint": {"gateway": "b:2"}})
    assert wait_for(lambda: role.returncode() is not None)
    assert role.returncode() == 0
    role.send({"kind": "endpoint", "endpoint": {"gateway": "c:3"}})


def test_supervisor_that_sends_nonsense_ends_the_role(start: Start) -> None:
    role = start("pids = []" + REPORT_AND_WAIT)
    wait_message(role, "state")
    role._stdin.write(b'{"kind":"dance"}\n')
    message = wait_message(role, "failed")
    assert "dance" in message["message"]
    assert 'expected kind "stop"' in message["message"]


def test_first_line_is_not_shown_where_it_is_no_start_message() -> None:
    command = [sys.executable, "-c", "from seedflow.roles import RoleChannel; RoleChannel.open()"]
    done = subprocess.run(command, input=b'{"token": "hush"}\n', capture_output=True, timeout=60)
    assert done.returncode == 1
    assert b"17 bytes" in done.stderr
    assert b"hush" not in done.stderr


def test_messages_are_bounded_lines() -> None:
    assert decode(encode({"kind": "state", "text": "a\nb"})[:-1], "me") == {"kind": "state", "text": "a\nb"}
    with pytest.raises(TransportError, match=rf"'state' message has \d+ bytes: at most {MAX_LINE}"):
        encode({"kind": "state", "text": "x" * MAX_LINE})
    with pytest.raises(TransportError, match='expected a JSON object with a "kind"'):
        decode(b"[1]", "me")


def test_failure_of_a_huge_exception_still_fits_into_a_message() -> None:
    encode(failure(ValueError("x" * (2 * MAX_LINE)), retryable=False))

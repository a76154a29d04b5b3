import errno
import io
import math
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seedflow.metrics.console import Console, Mode, format_duration, format_number


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


SNAPSHOT = {
    "steps/agent": 250_000,
    "rate/agent_steps_per_second": 5_000.0,
    "inference/batch_size": 128.0,
    "queue/unrolls": 3,
    "slots/free": 40,
    "lag/policy_versions": 1.25,
    "lease/active": 2,
    "actor/restarts": 0,
}


def test_where_output_is_no_terminal_each_write_is_one_line(out: io.StringIO, clock: FakeClock) -> None:
    with Console(1_000_000, title="cartpole", file=out, clock=clock) as console:
        console.write(250_000, SNAPSHOT | {"episode/return": 195.34, "eval/return": 210.0})
    assert out.getvalue() == (
        "cartpole | 250k / 1M steps (25%) | 2:30 left | return 195 | eval 210 | steps/s 5k | batch 128"
        " | queue 3 | free slots 40 | lag 1.25 | actors 2 | restarts 0 | bottleneck -\n"
    )


@pytest.mark.parametrize("returns", [{}, {"episode/return": math.nan}])
def test_before_an_episode_has_ended_its_return_is_a_dash(
    out: io.StringIO, clock: FakeClock, returns: dict[str, float]
) -> None:
    with Console(1_000_000, "plain", file=out, clock=clock) as console:
        console.write(250_000, SNAPSHOT | returns)
    assert "| return - | eval - |" in out.getvalue()
    assert "nan" not in out.getvalue().lower()


def test_a_value_stays_until_there_is_a_new_one(out: io.StringIO, clock: FakeClock) -> None:
    with Console(1_000_000, "plain", file=out, clock=clock) as console:
        console.write(1, SNAPSHOT | {"eval/return": 77.0})
        console.write(2, SNAPSHOT)
    assert out.getvalue().splitlines()[1].count("| eval 77 |") == 1


def test_time_left_follows_a_smoothed_speed_and_is_a_dash_while_there_is_none(
    out: io.StringIO, clock: FakeClock
) -> None:
    with Console(1000, "plain", file=out, clock=clock) as console:
        console.write(100, {})
        console.write(200, {"rate/agent_steps_per_second": 10.0})
        console.write(200, {"rate/agent_steps_per_second": 20.0})  # 10 + 0.3 * (20 - 10)
        console.write(200, {"rate/agent_steps_per_second": math.nan})
        console.write(1050, {"rate/agent_steps_per_second": 10.0})
    left = [line.split(" | ")[1] for line in out.getvalue().splitlines()]
    assert left == ["- left", "1:20 left", "1:02 left", "1:02 left", "0:00 left"]


def test_a_run_that_stands_still_for_long_has_no_end_in_sight(out: io.StringIO, clock: FakeClock) -> None:
    with Console(1000, "plain", file=out, clock=clock) as console:
        console.write(100, {"rate/agent_steps_per_second": 10.0})
        for _ in range(60):
            console.write(100, {"rate/agent_steps_per_second": 0.0})
    left = [line.split(" | ")[1] for line in out.getvalue().splitlines()]
    assert (left[0], left[-1]) == ("1:30 left", "- left")


def test_progress_is_complete_only_when_nothing_is_left(out: io.StringIO, clock: FakeClock) -> None:
    with Console(1000, "plain", file=out, clock=clock) as console:
        console.write(999, {})
        console.write(1016, {})
    assert "(99%)" in out.getvalue().splitlines()[0]
    assert "(100%)" in out.getvalue().splitlines()[1]


def test_messages_go_between_the_lines(out: io.StringIO, clock: FakeClock) -> None:
    with Console(1000, "plain", file=out, clock=clock) as console:
        console.message("actor 1 was replaced")
        console.write(1, {})
    assert out.getvalue().splitlines()[0] == "actor 1 was replaced"


def test_off_prints_nothing(out: io.StringIO) -> None:
    with Console(1000, "off", file=out) as console:
        console.write(1, SNAPSHOT)
        console.message("hello")
    assert out.getvalue() == ""


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_reader_who_leaves_does_not_end_the_run(mode: Mode) -> None:
    read, write = os.pipe()
    os.close(read)
    with io.TextIOWrapper(io.FileIO(write, "w"), write_through=True) as file:
        console = Console(1000, mode, file=file)
        console.write(1, {})
        console.message("hello")
        console.close()


def test_a_terminal_that_is_closed_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stdout = sys.stdout
    terminal, child_side = pty.openpty()
    with io.TextIOWrapper(io.FileIO(child_side, "w"), write_through=True) as file:
        console = Console(1000, file=file)
        console.write(1, {})
        os.close(terminal)
        console.write(2, {})
        console.message("hello")
        console.close()
    assert sys.stdout is stdout


def test_a_disk_that_is_full_is_no_reader_who_left(out: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(out, "write", write)
    with pytest.raises(OSError, match="No space left"), Console(1000, "plain", file=out) as console:
        console.write(1, {})


def test_live_output_shows_progress_and_metrics_and_leaves_the_cursor_visible(
    out: io.StringIO, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    console = Console(1_000_000, "live", title="cartpole", file=out, clock=clock)
    console.write(250_000, SNAPSHOT)
    console.message("actor 1 [of 2] was replaced")
    console.write(500_000, SNAPSHOT | {"steps/agent": 500_000, "episode/return": 42.0})
    console.close()
    console.close()
    text = out.getvalue()
    assert "actor 1 [of 2] was replaced" in text
    last = text[text.rindex("cartpole") :]
    for expected in ("50%", "500k / 1M steps", "0:00 elapsed, 1:40 left", "42", "restarts"):
        assert expected in last
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


LONG = {
    "episode/return": -1234.5,
    "eval/return": 12345.0,
    "rate/agent_steps_per_second": 123_456.0,
    "inference/batch_size": 50.21,
    "queue/unrolls": 102,
    "slots/free": 1480,
    "lag/policy_versions": 12.47,
    "lease/active": 128,
    "actor/restarts": 12,
}


@pytest.mark.parametrize("title", ["run", "cartpole_masked_vtrace-20260101-120000-2"])
@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (160, ["return", "steps/s", "queue", "free slots", "restarts"], []),
        (100, ["return", "eval", "steps/s", "lag", "actors", "restarts"], ["free slots"]),
        (80, ["return", "steps/s", "lag", "actors", "restarts"], ["free slots", "queue"]),
        (40, ["return", "steps/s"], ["free slots", "actors"]),
    ],
)
def test_live_output_keeps_to_two_lines(
    out: io.StringIO,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    title: str,
    width: int,
    shown: list[str],
    left_out: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with Console(1_000_000_000, "live", title=title, file=out, clock=clock) as console:
        clock.now = 100_000.0
        console.write(250_000_000, {"steps/agent": 250_000_000, **LONG})
        out.truncate(0)
        console.write(250_000_000, {})
        drawn = out.getvalue()
    text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]|\r|\0", "", drawn)
    first, second = text.split("\n")
    assert max(len(first), len(second)) <= width
    assert first.startswith(title[:10])
    assert " 25%" in first
    assert width < 80 or "250M / 1G steps" in first
    assert all(label in second for label in shown)
    assert not any(label in second for label in left_out)


PROGRAM = """
import signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background has it ignored
from seedflow.metrics.console import Console
console = Console(1000, title="run")
console.write(500, {"episode/return": 3.0})
print("PRINTED BY SOMEONE ELSE", flush=True)
threading.Event().wait(100)
"""


def run_on_a_terminal(number: signal.Signals) -> tuple[int, bytes]:
    """Run PROGRAM on a pseudo terminal; send the signal once it shows its progress."""
    terminal, child_side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=child_side, stdout=child_side, stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2], env=os.environ | {"TERM": "xterm"}, start_new_session=True,
    )  # fmt: skip
    os.close(child_side)
    shown = b""
    try:
        while b"ELSE" not in shown:
            shown += os.read(terminal, 4096)
        process.send_signal(number)
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            shown += data
        return process.wait(60), shown
    finally:
        process.kill()
        process.wait(60)
        os.close(terminal)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_usable_terminal(number: signal.Signals) -> None:
    returncode, shown = run_on_a_terminal(number)
    assert returncode == -number
    assert b"500" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor was hidden"
    if number == signal.SIGINT:
        assert shown.removesuffix(b"\x1b[?25h").endswith(b"\r\n"), "the prompt begins on a line of its own"


def test_numbers_are_short() -> None:
    assert [format_number(x) for x in (None, math.inf, 0, 12345, 999_999, 3.2e10)] == [
        "-", "-", "0", "12.3k", "1M", "32G"
    ]  # fmt: skip


def test_durations_read_as_clocks() -> None:
    assert [format_duration(s) for s in (0.4, 59.6, 3600)] == ["0:00", "1:00", "1:00:00"]

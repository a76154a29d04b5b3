"""Progress of a run for the person who started it."""

from __future__ import annotations

import atexit
import errno
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

import rich.console
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from seedflow.metrics.bottleneck import bottleneck
from seedflow.metrics.names import AGENT_STEPS, AGENT_STEPS_PER_SECOND, EPISODE_RETURN, EVAL_RETURN
from seedflow.metrics.sinks import Sink

Mode = Literal["auto", "live", "plain", "off"]

ABSENT = "-"
SMOOTHING = 0.3
"""Weight of the newest speed in the speed from which the time left is estimated."""

LONGEST_SECONDS = 1000 * 86_400.0
"""Longest time left that is shown."""

FIELDS: tuple[tuple[str, str], ...] = (
    ("return", EPISODE_RETURN),
    ("eval", EVAL_RETURN),
    ("steps/s", AGENT_STEPS_PER_SECOND),
    ("batch", "inference/batch_size"),
    ("queue", "queue/unrolls"),
    ("free slots", "slots/free"),
    ("lag", "lag/policy_versions"),
    ("actors", "lease/active"),
    ("restarts", "actor/restarts"),
)
"""Labels and metrics shown beside the progress."""
SHORTEST_TITLE = 16
SHORTEST_BAR = 8
LEFT_OUT_FIRST = ("free slots", "queue", "batch", "eval", "actors", "restarts", "lag")
"""What a terminal that is too narrow for one line of all does not show, in this order."""


class Console(Sink):
    """Shows progress, time left and the metrics that tell how a run is doing.

    On a terminal it keeps an area of two lines up to date; elsewhere it prints one line per write.
    A metric keeps its last value until there is a new one; one without a value yet, such as the
    return before the first episode has ended, is shown as ``-``.

    The terminal stays usable however the process ends: the cursor is never hidden, and no mode of
    the terminal is changed.

    Parameters
    ----------
    total_steps
        Agent steps at which the run ends.
    mode
        The setting ``metrics.console``: ``live`` or ``plain`` text, ``off``, or ``auto``, which is
        ``live`` on a terminal and ``plain`` elsewhere.
    title
        Shown before the progress bar.
    file
        Where to print; standard output by default.
    clock
        Seconds from an arbitrary origin.

    Attributes
    ----------
    title
        May be set later, before the first write.
    """

    def __init__(
        self,
        total_steps: int,
        mode: Mode = "auto",
        title: str = "",
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = sys.stdout if file is None else file
        if mode == "auto":
            terminal = rich.console.Console(file=self._file)
            mode = "live" if terminal.is_terminal and not terminal.is_dumb_terminal else "plain"
        self._mode = mode
        self.title = title
        self._progress = _Progress(total_steps, clock)
        self._latest: dict[str, float] = {}
        self._live: Live | None = None
        self._closed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show a snapshot; progress follows ``steps/agent``, or `step` where that is absent."""
        if self._closed:
            return
        self._latest.update(values)
        speed = values.get(AGENT_STEPS_PER_SECOND)
        self._progress.update(int(values.get(AGENT_STEPS, step)), speed)
        if self._mode == "live":
            self._show(lambda: self._start_live().refresh())
        else:
            self.message(self._line())

    def message(self, text: str) -> None:
        """Print a line of text; on a terminal it scrolls by above the live area."""
        if self._mode == "off":
            return
        if (live := self._live) is not None:
            self._show(lambda: live.console.print(Text(text)))
        else:
            self._show(lambda: print(text, file=self._file, flush=True))

    def close(self) -> None:
        """Leave the last state of the live area standing and give the terminal back."""
        self._closed = True
        if self._live is not None:
            live, self._live = self._live, None
            atexit.unregister(self.close)
            self._show(live.stop)

    def _show(self, output: Callable[[], None]) -> None:
        """Print; if whoever was reading has left, a closed terminal or `| head`, go on in silence."""
        try:
            output()
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self._mode = "off"
            self.close()

    def _start_live(self) -> Live:
        if self._live is None:
            terminal = _Terminal(file=self._file, force_terminal=True, highlight=False)
            # Drawn by `write` only: no thread that could draw while a signal ends the process.
            self._live = Live(
                console=terminal, auto_refresh=False, get_renderable=lambda: self._area(terminal.width)
            )
            atexit.register(self.close)
            self._live.start()
            # A process that is killed cannot bring a hidden cursor back.
            terminal.show_cursor(True)
        return self._live

    def _values(self) -> list[tuple[str, str]]:
        values = [(label, format_number(self._latest.get(name))) for label, name in FIELDS]
        return [*values, ("bottleneck", bottleneck(self._latest) or ABSENT)]

    def _line(self) -> str:
        progress = self._progress
        parts = [f"{progress.steps_text} ({progress.percent_text.strip()})", f"{progress.left_text} left"]
        if self.title:
            parts.insert(0, self.title)
        return " | ".join(parts + [f"{label} {value}" for label, value in self._values()])

    def _area(self, width: int) -> Group:
        return Group(self._top(width), _fitted(self._values(), width))

    def _top(self, width: int) -> Table:
        """Title, bar, progress and time in one line; what does not fit is shortened or left out."""
        progress = self._progress
        percent, steps = progress.percent_text, progress.steps_text
        left = f"{progress.left_text} left"
        rights = [f"{percent} {steps} {progress.elapsed_text} elapsed, {left}", f"{percent} {steps} {left}"]
        rights += [f"{percent} {left}", percent]
        titled = min(len(self.title), SHORTEST_TITLE) + 1 if self.title else 0
        right = next((text for text in rights if titled + len(text) <= width), percent)
        title = Text(self.title, style="bold")
        title.truncate(max(0, width - len(right) - 1), overflow="ellipsis")
        bar = width - len(right) - 1 - (title.cell_len + 1 if title else 0)
        cells: list[RenderableType] = [title] if title else []
        if bar >= SHORTEST_BAR:
            done = min(progress.steps, progress.total)
            cells.append(ProgressBar(total=progress.total, completed=done, width=bar))
        shown = Text(right, style="cyan", no_wrap=True)
        shown.stylize("bold", 0, len(percent))
        top = Table.grid(padding=(0, 1))
        top.add_row(*cells, shown)
        return top


def _fitted(values: list[tuple[str, str]], width: int) -> Text:
    """Labels and values in one line of a terminal; what does not fit is left out."""

    def line(gap: int) -> Text:
        return Text(" " * gap, no_wrap=True, overflow="ellipsis").join(
            Text.assemble((f"{label} ", "dim"), (value, "dim" if value == ABSENT else "bold"))
            for label, value in values
        )

    for label in LEFT_OUT_FIRST:
        if line(2).cell_len <= width:
            break
        values = [item for item in values if item[0] != label]
    return line(3) if line(3).cell_len <= width else line(2)


class Journal(Console):
    """Only what is said in words, and that as plain lines; for a log."""

    def __init__(self, total_steps: int, mode: Mode = "auto") -> None:
        super().__init__(total_steps, "off" if mode == "off" else "plain")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Show nothing: whoever follows the run reads its metrics."""


class _Terminal(rich.console.Console):
    """A rich console that leaves it to its user what a reader who left means; rich's exits."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "whoever was reading has left")


@dataclass
class _Progress:
    """Steps done of the steps to do, and the time that is left at the smoothed speed."""

    total: int
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        self.steps = 0
        self._began = self.clock()
        self._speed: float | None = None

    def update(self, steps: int, speed: float | None) -> None:
        self.steps = steps
        if speed is not None and math.isfinite(speed):
            before = speed if self._speed is None else self._speed
            self._speed = before + SMOOTHING * (speed - before)

    @property
    def steps_text(self) -> str:
        return f"{format_number(self.steps)} / {format_number(self.total)} steps"

    @property
    def percent_text(self) -> str:
        # Rounded down, so that 100 % means that nothing is left.
        return f"{min(100, 100 * self.steps // max(self.total, 1)):3d}%"

    @property
    def elapsed_text(self) -> str:
        return format_duration(self.clock() - self._began)

    @property
    def left_text(self) -> str:
        if self.steps >= self.total:
            return format_duration(0)
        left = (self.total - self.steps) / self._speed if self._speed else math.inf
        # A run that stands still has no end in sight, however slowly its smoothed speed falls.
        return format_duration(left) if left < LONGEST_SECONDS else ABSENT


def format_number(value: float | None) -> str:
    """A number in few characters: three digits, with k, M, G; ``-`` for none or a non-finite one.

    Examples
    --------
    >>> [format_number(x) for x in (None, 0, 7, 195.34, 0.01234, 12_345, 999_999, 2_500_000, -21)]
    ['-', '0', '7', '195', '0.0123', '12.3k', '1M', '2.5M', '-21']
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    scaled, suffix = float(f"{value:.3g}"), ""
    for suffix in ("", "k", "M", "G"):
        if abs(scaled) < 1000:
            break
        if suffix != "G":
            scaled /= 1000
    return f"{scaled:.3g}{suffix}"


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds, with days in front from one day on.

    Examples
    --------
    >>> [format_duration(s) for s in (7, 83.4, 3661, 200_000)]
    ['0:07', '1:23', '1:01:01', '2d 7:33:20']
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"

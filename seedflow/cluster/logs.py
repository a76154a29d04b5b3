"""A role's log on its worker's host, and its way to the run's directory where that host does not see it.

The supervisor sends what a role has written, every second or so and little at a time, so that the driver has
most of it even where the worker is killed. What a role writes faster than that is left out, and said to be.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from seedflow.private import private_directory

MARKER = ".run-"
"""How the file begins by which a worker knows the run's directory from another one of the same path."""
NEWS_SECONDS = 1.0
NEWS_BYTES = 16 << 10
"""Sent at a time; the scheduler keeps the last thousand messages of a run."""
LAST_BYTES = 128 << 10
"""Sent at the end."""
MOST_BYTES = 8 << 20
"""Sent of one start of a role, the end apart."""


class RoleLog:
    """The log of one start of a role.

    Attributes
    ----------
    path
        The file that the role writes to.
    collected
        Whether its content has to be sent.
    shown
        Where people find it: in the run's directory, or there once it is collected.
    """

    def __init__(self, wanted: Path, run: str, local: Path) -> None:
        self.shown = wanted
        self.collected = not (wanted.parent.parent / f"{MARKER}{run}").exists()
        self.path = local / "seedflow-logs" / run / wanted.name if self.collected else wanted
        private_directory(self.path.parent)
        self.path.touch(mode=0o600)
        self._sent = self._taken = 0
        self._next = 0.0

    def write(self, line: str) -> None:
        """Append a line, before the role does."""
        with self.path.open("a") as file:
            file.write(line + "\n")

    def news(self, now: float, last: bool = False) -> str | None:
        """What is to be sent now, if anything is.

        Parameters
        ----------
        now
            Seconds of a clock that never goes back.
        last
            Whether the role has ended.
        """
        if not self.collected or (now < self._next and not last):
            return None
        self._next = now + NEWS_SECONDS
        limit = LAST_BYTES if last else min(NEWS_BYTES, MOST_BYTES - self._sent)
        size = self.path.stat().st_size
        skipped = max(0, size - self._taken - limit)
        if limit <= 0 or size == self._taken:
            return None
        with self.path.open("rb") as file:
            file.seek(self._taken + skipped)
            data = file.read(limit)
        self._taken += skipped + len(data)
        self._sent += len(data)
        text = data.decode(errors="replace")
        return f"\n[{skipped} bytes left out: {self.path}]\n{text}" if skipped else text

    def remove(self) -> None:
        """Remove a file that was collected, and the directories that are then empty."""
        if not self.collected:
            return
        self.path.unlink(missing_ok=True)
        for folder in (self.path.parent, self.path.parent.parent):
            with suppress(OSError):  # another role's log is there
                os.rmdir(folder)


def collect(directory: Path, name: str, text: str) -> None:
    """At the driver: append what came to the log in the run's directory."""
    private_directory(directory / "logs")
    fd = os.open(directory / "logs" / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "a", encoding="utf-8") as file:
        file.write(text)

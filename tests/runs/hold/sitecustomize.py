"""Holds a process at the first event of its interpreter that ``RUN_HOLD`` names, until the mark ``go``.

``RUN_HOLD`` is ``open:NAME`` or ``import:NAME``: a file whose path ends so, a module of that name.
"""

import os
import sys
import time
from pathlib import Path

WANTED, _, NAME = os.environ.get("RUN_HOLD", "").partition(":")
MARKS = Path(os.environ.get("RUN_MARKS", "/nonexistent"))
HOLD_SECONDS = 300.0
_held = []


def hold(event: str, arguments: tuple[object, ...]) -> None:
    if event != WANTED or _held or not str(arguments[0]).endswith(NAME):
        return
    _held.append(event)
    (MARKS / "held").touch()
    deadline = time.monotonic() + HOLD_SECONDS
    while not (MARKS / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.01)


if WANTED:
    sys.addaudithook(hold)

"""The processes that a role has started, at any depth: who they are and how they end."""

from __future__ import annotations

import os
import signal
import time


def members(leader: int, marker: str) -> list[int]:
    """Process ids, other than the leader's and this one's, in a role's session or with its marker.

    A session alone would miss a process that has made one of its own; the marker, a variable that stands in
    the environment of the role and of all that it starts, finds those.
    """
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (leader, os.getpid()):
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            if int(session) != leader:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if not marker or f"{marker}=1".encode() not in file.read():
                        continue
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or not ours
            continue
        found.append(int(name))
    return found


def _signal(leader: int, marker: str, number: signal.Signals) -> int:
    found = members(leader, marker)
    for pid in found:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):  # gone meanwhile, or set-uid
            continue
    return len(found)


def kill_members(leader: int, marker: str, seconds: float = 2.0) -> None:
    """Kill until nothing is left: a process may fork between the listing and the signal."""
    deadline = time.monotonic() + seconds
    while _signal(leader, marker, signal.SIGKILL) and time.monotonic() < deadline:
        time.sleep(0.005)


def end_members(leader: int, marker: str, grace: float) -> None:
    """SIGTERM, up to `grace` seconds to end, SIGKILL."""
    deadline = time.monotonic() + grace
    left = _signal(leader, marker, signal.SIGTERM)
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = len(members(leader, marker))
    if left:
        kill_members(leader, marker)

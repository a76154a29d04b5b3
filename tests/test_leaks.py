"""The check for leaks finds what it should, and only that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.leaks import left_behind, take_stock


def test_a_child_process_is_found() -> None:
    before = take_stock()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert [line.split(":")[0] for line in left_behind(before, patience=0)] == [f"process {child.pid}"]
    finally:
        child.kill()
        child.wait(10)
    assert left_behind(before) == []


def test_a_thread_is_found() -> None:
    before, end = take_stock(), threading.Event()
    thread = threading.Thread(target=end.wait, args=(60,), name="forgotten")
    thread.start()
    try:
        assert left_behind(before, patience=0) == ["thread forgotten"]
    finally:
        end.set()
        thread.join(10)
    assert left_behind(before) == []


def test_sockets_and_event_descriptors_are_found() -> None:
    before = take_stock()
    left, right = socket.socketpair()
    number = os.eventfd(0)
    with left, right:
        found = left_behind(before, patience=0)
        os.close(number)
        assert sum(": socket:[" in line for line in found) == 2
        assert f"descriptor {number}: anon_inode:[eventfd] #{number}" in found
    assert left_behind(before) == []


def test_an_open_file_is_found_unless_it_belongs_to_an_installed_package(tmp_path: Path) -> None:
    before = take_stock()
    path = tmp_path / "log"
    with path.open("w") as log, Path(os.__file__).open() as library:
        assert left_behind(before, patience=0) == [f"descriptor {log.fileno()}: {path}"]
        assert library.fileno() != log.fileno()

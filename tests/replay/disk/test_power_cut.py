"""The power goes while a replay is saved to a real file system.

An ext4 file system lies in a file. A process saves to it and is killed; what is in the file at that moment is
what a disk would have after a power cut: what was written back, not what was in the page cache. A copy of the
file is mounted, which replays the journal as after a crash, and restored from.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seedflow.errors import CheckpointError
from seedflow.replay.disk.group import Form
from tests.replay.disk.killed import check

ROOT = Path(__file__).parents[3]
MEGABYTES = 64


def can_mount() -> bool:
    programs = all(shutil.which(name) for name in ("mkfs.ext4", "mount", "umount", "losetup"))
    return os.geteuid() == 0 and programs and os.path.exists("/dev/loop-control")


pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not can_mount(), reason="needs root and loop devices"),
]


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    # Nothing is written back by itself while the test lasts.
    subprocess.run(["mount", "-t", "ext4", "-o", "loop,commit=600", image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def cut(directory: Path, form: Form, acknowledged: int, *options: str) -> tuple[int, Path]:
    """Save until so many generations are acknowledged, then cut the power; returns what a disk has then."""
    image, copy = directory / "disk.img", directory / "after.img"
    with image.open("wb") as file:
        file.truncate(MEGABYTES * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    with mounted(image, directory / "before") as place:
        command = [
            sys.executable,
            "-m",
            "tests.replay.disk.killed",
            "save",
            str(place / "replay"),
            form,
            *options,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            for _ in range(acknowledged):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read().split()
        shutil.copyfile(image, copy)
    return int(rest[-1]) if rest else last, copy


@pytest.mark.parametrize("form", ["zip", "directory"])
@pytest.mark.parametrize("round_number", range(3))
def test_no_acknowledged_replay_is_lost_with_the_power(tmp_path: Path, form: Form, round_number: int) -> None:
    wanted = random.Random(round_number).randint(1, 6)
    acknowledged, copy = cut(tmp_path, form, wanted)
    assert acknowledged >= wanted
    with mounted(copy, tmp_path / "after") as place:
        assert check(place / "replay", acknowledged) >= acknowledged


@pytest.mark.parametrize("form", ["zip", "directory"])
def test_without_fsync_the_same_loses_what_was_acknowledged(tmp_path: Path, form: Form) -> None:
    """The rehearsal above can fail: here it does."""
    acknowledged, copy = cut(tmp_path, form, 3, "no-sync")
    with mounted(copy, tmp_path / "after") as place, pytest.raises((CheckpointError, AssertionError)):
        check(place / "replay", acknowledged)

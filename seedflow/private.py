"""Directories that nobody but their owner reads: those of runs, logs and sockets."""

from __future__ import annotations

import os
from pathlib import Path

from seedflow.errors import ConfigError

OWNER_ONLY = 0o700


def private_directory(path: Path) -> None:
    """Make a directory that only its owner can enter; directories above it are made as usual.

    One that is there already keeps its mode: its owner may want to share it.

    Raises
    ------
    ConfigError
        If it belongs to somebody else, who could replace what is written there. The superuser may.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=OWNER_ONLY, exist_ok=True)
    owner, user = path.stat().st_uid, os.geteuid()
    if owner != user and user != 0:
        raise ConfigError(
            f"run_dir = {path} belongs to user {owner}, not to user {user} who runs this; choose another"
        )

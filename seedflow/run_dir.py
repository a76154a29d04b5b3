"""The directory of a run: its name, its config, and who may write into it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seedflow.config import RUN_CONFIG, Config, dump_config
from seedflow.errors import ConfigError
from seedflow.metrics import METRICS_FILE
from seedflow.private import private_directory

LOCK = ".lock"


def default_run_dir(name: str) -> Path:
    """A new directory under ``runs``, named by what is run and when."""
    stem = name.rpartition("/")[2]
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def check_run_dir(directory: Path, resume: bool, resume_or_start: bool) -> bool:
    """Say whether to resume; refuse a directory that holds a run unless asked to go on with it.

    Raises
    ------
    ConfigError
        Says what to do instead.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"run_dir = {directory} is no directory; choose another")
    saved = any((directory / "checkpoints" / "manifests").glob("*.json"))
    used = saved or (directory / METRICS_FILE).exists()
    if resume and not saved:
        raise ConfigError(
            f"run_dir = {directory} holds no checkpoint to resume from; start there with --resume-or-start"
        )
    if used and not (resume or resume_or_start):
        how = "--resume" if saved else "--resume-or-start (it has saved no checkpoint yet)"
        raise ConfigError(
            f"run_dir = {directory} holds a run already; go on with it by {how}, or choose another"
        )
    return saved and (resume or resume_or_start)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other drivers on this host, or with the same shared file system, out of a run directory.

    A directory that is not there is made, for nobody else to read. The lock ends with the process that holds
    it, however that ends.

    Raises
    ------
    ConfigError
        If another process holds it, or the directory is another user's.
    """
    private_directory(directory)
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"run_dir = {directory} is in use by another process; stop that run first, or choose another"
            ) from None
        yield
    finally:
        os.close(fd)


def write_config(directory: Path, config: Config) -> None:
    """Write the run's config, in full or not at all."""
    temporary = directory / f".{RUN_CONFIG}.{os.getpid()}"
    temporary.write_text(dump_config(config))
    os.replace(temporary, directory / RUN_CONFIG)

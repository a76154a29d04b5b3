"""The directory of a run: its name, its config, and who may write into it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from seedflow.config import RUN_CONFIG, Config, dump_config
from seedflow.errors import ConfigError
from seedflow.metrics import METRICS_FILE
from seedflow.private import OWNER_ONLY, private_directory
from seedflow.run_record import RECORD

LOCK = ".lock"


@dataclass(frozen=True)
class Prepared:
    """A run directory that is ready for its run.

    Attributes
    ----------
    dir
        The directory.
    goes_on
        To be called once the run really goes: of a resumed one, the settings stick from then on.
    """

    dir: Path
    goes_on: Callable[[], None]


def default_run_dir(name: str) -> Path:
    """A directory under ``runs``, named by what is run and when.

    Parameters
    ----------
    name
        Of a configuration or environment; of a path the last part, without ``.yaml``.
    """
    path = Path(name)
    stem = path.stem if path.suffix in (".yaml", ".yml") else path.name
    return Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def holds_run(directory: Path) -> bool:
    """Whether a run has left checkpoints or metrics there."""
    return _has_checkpoint(directory) or (directory / METRICS_FILE).exists()


def check_run_dir(directory: Path, resume: bool, resume_or_start: bool) -> bool:
    """Say whether to resume; refuse a directory that holds a run unless asked to go on with it.

    Raises
    ------
    ConfigError
        Says what to do instead.
    """
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"run_dir = {directory} is no directory; choose another")
    if in_use(directory):
        raise _busy(directory)
    saved = _has_checkpoint(directory)
    if resume and not saved:
        raise ConfigError(
            f"run_dir = {directory} holds no checkpoint to resume from; start there with --resume-or-start"
        )
    if holds_run(directory) and not (resume or resume_or_start):
        how = "--resume" if saved else "--resume-or-start (it has saved no checkpoint yet)"
        raise ConfigError(
            f"run_dir = {directory} holds a run already; go on with it by {how}, or choose another"
        )
    return saved and (resume or resume_or_start)


@contextmanager
def claimed(directory: Path, new_name: bool = False) -> Iterator[Path]:
    """Make a run directory, for nobody else to read, and keep other runs out of it.

    It is cleared away if the run does not come about.

    Parameters
    ----------
    directory
        Its path.
    new_name
        Whether it must not exist yet; a number is appended to the name where it does.

    Yields
    ------
    Path
        The directory. If the block raises and the run has left nothing in it by then, what this module has
        written is removed, and so is the directory if it was made here.

    Raises
    ------
    ConfigError
        If another process holds it, it cannot be made, or it is another user's.
    """
    with ExitStack() as stack:
        try:
            directory, made = _make(directory, new_name)
            before = set(os.listdir(directory))
            stack.enter_context(locked(directory))
        except OSError as error:
            raise ConfigError(
                f"run_dir = {directory} cannot be made or written ({error.strerror}); choose another"
            ) from error
        try:
            yield directory
        except BaseException:
            _clear(directory, before, made)
            raise


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
    path = directory / LOCK
    while True:
        try:
            private_directory(directory)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:  # a run that did not come about has just removed the directory
            continue
        try:
            if not _lock(fd):
                raise _busy(directory)
            if _is_at(fd, path):
                yield
                return
        finally:
            os.close(fd)


def write_config(directory: Path, config: Config) -> None:
    """Write the run's config, in full or not at all."""
    temporary = directory / f".{RUN_CONFIG}.{os.getpid()}"
    temporary.write_text(dump_config(config))
    os.replace(temporary, directory / RUN_CONFIG)


def shown(directory: Path) -> Path:
    """A path as people type it: from the working directory where it is below that."""
    try:
        return directory.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):  # elsewhere, or the working directory is gone
        return directory


def _has_checkpoint(directory: Path) -> bool:
    return any((directory / "checkpoints" / "manifests").glob("*.json"))


def _make(directory: Path, new_name: bool) -> tuple[Path, bool]:
    """The directory, made if need be, and whether it was."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    candidate, count = directory, 1
    while True:
        try:
            candidate.mkdir(mode=OWNER_ONLY)
            return candidate, True
        except FileExistsError:
            if not new_name:
                return candidate, False
            count += 1
            candidate = directory.with_name(f"{directory.name}-{count}")


def _clear(directory: Path, before: set[str], made: bool) -> None:
    """Remove what this module has written, if the run has left nothing else."""
    own = {LOCK, RUN_CONFIG, RECORD} - before
    if set(os.listdir(directory)) <= own | before:
        for name in own:
            (directory / name).unlink(missing_ok=True)
        if made:
            directory.rmdir()


def in_use(directory: Path) -> bool:
    """Whether a driver holds a run directory."""
    try:
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # none there; if it is not ours to open, taking it fails in time
        return False
    try:
        return not _lock(fd)
    finally:
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _lock(fd: int) -> bool:
    """Whether the lock could be had."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(directory: Path) -> ConfigError:
    return ConfigError(
        f"run_dir = {directory} is in use by another process; stop that run first, or choose another"
    )

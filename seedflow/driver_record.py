"""Who drives a run, and how it ended: the file ``driver.json`` of its directory; and the request to end it.

The lock of the directory tells whether the driver lives. This file tells what another process needs to take
over from one that has died: where the cluster is, what the run is called there, and the starts of roles
that are used up. It holds no secret.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from seedflow.errors import ConfigError

DRIVER = "driver.json"
STOP = "stop-requested"
FORMAT, VERSION = "seedflow-driver", 1


@dataclass(frozen=True)
class DriverRecord:
    """Who drives a run.

    Attributes
    ----------
    run
        Its id on the cluster.
    scheduler
        Address of the Dask scheduler.
    outlived
        Whether the run goes on without its driver.
    host, pid
        The driver's.
    generations
        The latest start of each role.
    exit_code
        Of the driver, once the run has ended.
    """

    run: str
    scheduler: str
    outlived: bool
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    generations: Mapping[str, int] = field(default_factory=dict)
    exit_code: int | None = None

    @classmethod
    def read(cls, directory: Path) -> DriverRecord | None:
        """What a run directory says; None where it says nothing.

        Raises
        ------
        ConfigError
            If the file cannot be read, or is a newer release's.
        """
        path = directory / DRIVER
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if document.pop("format") != FORMAT:
                raise ValueError("it is no record of a driver")
            version = document.pop("version")
            if type(version) is not int:
                raise ValueError(f"version {version!r}")
            record = cls(**document) if version <= VERSION else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error!r}): expected what seedflow wrote when the run was started"
            ) from error
        if record is None:
            raise ConfigError(f"{path} has version {version}, this release reads {VERSION}; upgrade seedflow")
        return record

    def write(self, directory: Path) -> None:
        """Write the file, in full or not at all."""
        document = {"format": FORMAT, "version": VERSION, **asdict(self)}
        temporary = directory / f".{DRIVER}.{os.getpid()}"
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, directory / DRIVER)

    def ended(self, exit_code: int) -> DriverRecord:
        """The same, once the run has ended."""
        return replace(self, exit_code=exit_code)


def request_stop(directory: Path) -> None:
    """Ask for the end of a run; its driver looks every second or so."""
    (directory / STOP).touch(mode=0o600)


def stop_requested(directory: Path) -> bool:
    """Whether somebody has asked."""
    return (directory / STOP).exists()


def clear_stop(directory: Path) -> None:
    """The request, if there is one, has been met, or is an earlier run's."""
    (directory / STOP).unlink(missing_ok=True)

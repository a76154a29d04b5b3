"""How a run was made, as far as its config does not say: the file ``run.json`` of its directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedflow.errors import ConfigError

RECORD = "run.json"
FORMAT, VERSION = "seedflow-run", 1


@dataclass(frozen=True)
class RunRecord:
    """How a run was made, as far as its config does not say.

    Attributes
    ----------
    env_fn
        What the user's function that makes the environments is called, for people: nothing is found or
        executed by this name. None where ``env.id`` makes them.
    """

    env_fn: str | None = None

    @classmethod
    def of(cls, env_fn: Callable[..., Any] | None) -> RunRecord:
        """The record of a run whose environments `env_fn` makes."""
        return cls(
            None if env_fn is None else str(getattr(env_fn, "__qualname__", type(env_fn).__qualname__))
        )

    @classmethod
    def read(cls, directory: Path) -> RunRecord:
        """What a run directory says; one without the file says nothing.

        Raises
        ------
        ConfigError
            If the file cannot be read, or is a newer release's.
        """
        path = directory / RECORD
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            version = document["version"]
            if document["format"] != FORMAT or type(version) is not int:
                raise ValueError(f"format {document['format']!r}, version {version!r}")
            env_fn = document["env_fn"] if version <= VERSION else None
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path} cannot be read ({error!r}): expected what seedflow wrote when the run was started"
            ) from error
        if version > VERSION:
            raise ConfigError(f"{path} has version {version}, this release reads {VERSION}; upgrade seedflow")
        return cls(None if env_fn is None else str(env_fn))

    def write(self, directory: Path) -> None:
        """Write the file, in full or not at all."""
        document = {"format": FORMAT, "version": VERSION, "env_fn": self.env_fn}
        temporary = directory / f".{RECORD}.{os.getpid()}"
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, directory / RECORD)

    def check_env_fn(self, directory: Path, given: bool, instead: str) -> None:
        """Refuse to go on without the function that made the environments.

        Parameters
        ----------
        given
            Whether there is one.
        instead
            What to call.

        Raises
        ------
        ConfigError
            The run's environments were made by a function, and none is given.
        """
        if self.env_fn is not None and not given:
            raise ConfigError(
                f"run_dir = {directory} was made with an env_fn, {self.env_fn!r}, which makes its "
                f"environments in place of env.id and is not kept in the directory: call {instead}"
            )

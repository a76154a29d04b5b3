"""What each start of a role of one run is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seedflow.cluster.launch import Kind, Launch
from seedflow.cluster.resources import GPU
from seedflow.cluster.slot import Submit
from seedflow.config import Config


class Launches:
    """Makes the `Launch` of every start.

    Parameters
    ----------
    config
        Settings.
    run, run_dir
        The run's id and directory.
    topic
        Where the driver listens.
    modules
        What each kind of role runs, as ``python -m``.
    start
        What the start messages of all roles have in common. It holds the run's token.
    keep_logs
        Whether workers keep logs that nobody may be there to collect.
    """

    def __init__(
        self,
        config: Config,
        run: str,
        run_dir: Path,
        topic: str,
        modules: Mapping[Kind, str],
        start: Mapping[str, Any],
        *,
        keep_logs: bool,
    ) -> None:
        self._config, self._run, self._logs, self._topic = config, run, run_dir / "logs", topic
        self._modules, self._start, self._keep_logs = modules, dict(start), keep_logs

    def go_on_as(self, launch: Launch) -> None:
        """Start roles with what another driver has started one of the run's with: its token, for example."""
        self._start = {key: value for key, value in launch.start.items() if key in self._start}

    def of(self, command: Submit, endpoint: Mapping[str, Any] | None, attempt: int) -> Launch:
        """The launch for a start.

        Parameters
        ----------
        endpoint, attempt
            Where an actor finds the learner, and the learner's number for its own start.
        """
        role, config = command.role, self._config
        learner = role.kind == "learner"
        start = {
            **self._start,
            "role": role.start_role,
            "index": role.index,
            "generation": command.generation,
        }
        if learner:
            start["host"] = config.rpc.interface
        else:
            start["endpoint"] = endpoint
            start["attempt"] = attempt
            start["before"] = None if command.before is None else asdict(command.before)
        return Launch(
            run=self._run,
            role=role,
            generation=command.generation,
            module=self._modules[role.kind],
            start=start,
            worker=command.place.worker,
            resources=dict(command.place.resources),
            topic=self._topic,
            log_path=str(self._logs / f"{role}-g{command.generation}.log"),
            threads=config.train.torch_threads if learner else 1,
            grace=config.cluster.stop_seconds if learner else config.actor.stop_seconds,
            gpu=learner or GPU in (config.actor.resources or {}),
            keep_log=self._keep_logs,
        )

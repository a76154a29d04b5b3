"""A run on a Dask cluster together with what it needs here: the connection and the console."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from seedflow.cluster import Run, RunStatus, open_cluster
from seedflow.config import Config
from seedflow.metrics import Console
from seedflow.specs import EnvSpec

if TYPE_CHECKING:
    from distributed import Client


class Experiment:
    """A running experiment; made by `seedflow.train`.

    Leaving the ``with`` block, or `stop`, ends every process of the run and, where it was started for the
    run, the local cluster.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    directory
        The run directory.
    client
        A client of the caller's whose cluster is used; never closed.
    resume
        Go on from the newest checkpoint.
    env_fn
        The user's environment, pickled.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        directory: Path,
        client: Client | None,
        resume: bool,
        env_fn: bytes | None,
    ) -> None:
        self.dir = directory
        with ExitStack() as stack:
            console = stack.enter_context(
                Console(config.train.total_agent_steps, config.metrics.console, directory.name)
            )
            connection = stack.enter_context(open_cluster(config, client))
            self._run = stack.enter_context(
                Run(
                    connection,
                    config,
                    spec,
                    directory,
                    env_fn=env_fn,
                    resume=resume,
                    on_metrics=lambda values: console.write(int(values["steps/agent"]), values),
                    on_note=console.message,
                )
            )
            self._stack = stack.pop_all()
        self._after = ExitStack()

    def status(self) -> RunStatus:
        """How the run and each of its roles are doing."""
        return self._run.status()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the run, or for `timeout` seconds; returns whether it has ended.

        Raises
        ------
        RunFailed
            If a role failed in a way that a restart cannot cure.
        """
        return self._run.wait(timeout)

    def stop(self) -> None:
        """Save a checkpoint and end every process of the run. May be called twice."""
        with self._after:
            self._stack.close()

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call something once everything of the run has ended."""
        self._after.callback(callback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

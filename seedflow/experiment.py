"""A run on a Dask cluster together with what it needs here: the connection, the directory and the console."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seedflow.cluster import Preflight, Run, RunStatus, open_cluster
from seedflow.config import Config
from seedflow.metrics import Console
from seedflow.run_dir import Prepared
from seedflow.specs import EnvSpec

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy import Cluster


class Experiment:
    """A running experiment; made by `seedflow.train`.

    Leaving the ``with`` block, or `stop`, ends every process of the run and, where it was started for the
    run, the local cluster.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    preparation
        Entered once the cluster is there; gives the run directory, and is left when all has ended.
    console
        Shows the progress.
    client
        A client or cluster of the caller's, which is never closed, or a scheduler's address.
    resume
        Go on from the newest checkpoint.
    env_fn
        The user's environment, pickled.
    restore_replay
        Another run whose replay to begin with.
    ship
        Modules of the user's, packed.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        preparation: AbstractContextManager[Prepared],
        console: Console,
        client: Client | Cluster | str | None,
        resume: bool,
        env_fn: bytes | None,
        restore_replay: str | None = None,
        ship: bytes | None = None,
    ) -> None:
        with ExitStack() as outer, ExitStack() as inner:
            inner.enter_context(console)
            connection = inner.enter_context(open_cluster(config, client))
            prepared = outer.enter_context(preparation)
            self.dir = prepared.dir
            elsewhere = client is not None or config.runtime == "cluster"
            self._run = inner.enter_context(
                Run(
                    connection,
                    config,
                    spec,
                    self.dir,
                    env_fn=env_fn,
                    ship=ship,
                    resume=resume,
                    restore_replay=restore_replay,
                    on_metrics=lambda values: console.write(int(values["steps/agent"]), values),
                    on_note=console.message,
                    preflight=Preflight(connection, config, spec, console.message) if elsewhere else None,
                )
            )
            prepared.goes_on()  # a resumed run: its checkpoint was seen to fit
            self._inner, self._outer = inner.pop_all(), outer.pop_all()

    def __repr__(self) -> str:
        return f"<Experiment {self.status().phase} in {self.dir}>"

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
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inner.__exit__(kind, error, trace)
        finally:
            self._outer.__exit__(kind, error, trace)

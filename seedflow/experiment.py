"""A run on a Dask cluster together with what it needs here: the connection, the directory and the console."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from seedflow.cluster import Adoption, Preflight, Run, RunStatus, open_cluster
from seedflow.config import Config
from seedflow.driver_record import DriverRecord, clear_stop, stop_requested
from seedflow.errors import RunStopped, RunSuspended
from seedflow.exit_codes import EXIT_STOPPED, exit_code
from seedflow.metrics import Console
from seedflow.run_dir import Prepared
from seedflow.specs import EnvSpec

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy import Cluster


@dataclass(frozen=True)
class Driving:
    """How a run is driven.

    Attributes
    ----------
    outlived
        Whether the run goes on when its driver dies; the local cluster ends with it all the same.
    adoption
        A run to go on with whose driver has died.
    started
        Called with the run directory once the run is up.
    """

    outlived: bool = False
    adoption: Adoption | None = None
    started: Callable[[Path], None] = lambda directory: None


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
    driving
        How the run is driven.
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
        driving: Driving | None = None,
    ) -> None:
        driving = driving or Driving()
        self._record: DriverRecord | None = None
        with ExitStack() as outer, ExitStack() as inner:
            inner.enter_context(console)
            connection = inner.enter_context(open_cluster(config, client))
            prepared = outer.enter_context(preparation)
            self.dir = prepared.dir
            elsewhere = driving.adoption is None and (client is not None or config.runtime == "cluster")
            if driving.adoption is None:
                clear_stop(self.dir)
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
                    outlives_driver=driving.outlived and config.runtime == "cluster",
                    adoption=driving.adoption,
                    stop_wanted=lambda: stop_requested(self.dir),
                    on_status=self._write_down,
                    on_metrics=lambda values: console.write(int(values["steps/agent"]), values),
                    on_note=console.message,
                    preflight=Preflight(connection, config, spec, console.message) if elsewhere else None,
                )
            )
            prepared.goes_on()  # a resumed run: its checkpoint was seen to fit
            assert connection.scheduler is not None
            outlived = driving.outlived and config.runtime == "cluster"
            self._record = DriverRecord(self._run.id, str(connection.scheduler.address), outlived)
            self._write_down(self._run.status())
            driving.started(self.dir)
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
        RunStopped
            If another process has asked for the end of the run.
        """
        ended = self._run.wait(timeout)
        if ended and self._run.stopped_on_request:
            raise RunStopped(f"{self.dir} was stopped by `seedflow stop`")
        return ended

    def stop(self) -> None:
        """Save a checkpoint and end every process of the run. May be called twice."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = EXIT_STOPPED if self._run.stopped_on_request else exit_code(error)
        try:
            try:
                self._inner.__exit__(kind, error, trace)
            finally:
                self._write_end(code)
                self._outer.__exit__(kind, error, trace)
        except RunSuspended as suspended:
            self._write_end(exit_code(suspended))
            raise

    def _write_down(self, status: RunStatus) -> None:
        """Keep the record of the driver up to date; in the run's thread, once the run is up."""
        if self._record is None or self._record.exit_code is not None:
            return
        generations = {str(role.role): role.generation for role in status.roles}
        if generations != self._record.generations:
            self._record = replace(self._record, generations=generations)
            self._record.write(self.dir)

    def _write_end(self, code: int) -> None:
        """The run has ended; before its directory is let go of."""
        if self._record is not None:
            self._record = self._record.ended(code)
            self._record.write(self.dir)
            clear_stop(self.dir)

"""The Dask cluster of a run: an existing one, or a local one that lasts as long as the run.

Whatever the caller has made, a client or a cluster, stays open and untouched: seedflow opens a connection
of its own to the same scheduler. The scheduler drops all that a connection has started when it ends, so
nothing of a run is left behind, however its driver ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from distributed.comm.core import CommClosedError, connect
from distributed.deploy import Cluster
from distributed.security import Security

from seedflow.cluster.placement import actor_roles
from seedflow.config import ClusterConfig, Config
from seedflow.errors import ConfigError, PlacementError
from seedflow.interrupts import sigterm_as_exit, starting_processes, uninterrupted

LOCAL_SETTINGS = {
    # A busy machine needs long to restart a killed worker; by default it is given up after 15 s.
    "distributed.deploy.lost-worker-timeout": "120s",
    # The workers only watch over roles and exchange no data. What Dask measures of itself, and how it moves
    # tasks and data about, would cost 2% of a core for each of them and 5% for the scheduler.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.tick.limit": "30s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
}

DASK_LOGGERS = (
    "distributed",
    "distributed.worker",
    "distributed.scheduler",
    "tornado.application",
    "asyncio",
)


@contextlib.contextmanager
def open_cluster(config: Config, client: Client | Cluster | str | None = None) -> Iterator[Client]:
    """Connect to the Dask cluster that `config` names, and disconnect at the end.

    Parameters
    ----------
    config
        `runtime` ``local`` starts workers on this machine and ends them afterwards; ``cluster`` uses
        `cluster.scheduler`, `cluster.scheduler_file`, Dask's own setting (``DASK_SCHEDULER_ADDRESS``) or the
        client that is Dask's default at the moment.
    client
        A connection of the caller, synchronous or not, or a cluster; only the scheduler's address and the
        credentials are used, whatever `runtime` says. Or such an address.

    Yields
    ------
    Client
        A connection of seedflow's own.

    Raises
    ------
    ConfigError
        If no cluster is named, or its address or certificates cannot be any.
    PlacementError
        If there is no such cluster, or it does not answer in time.
    """
    with sigterm_as_exit():
        if client is None and config.runtime == "local":
            opened = _local(config)
        else:
            opened = _connect(*_find_scheduler(config.cluster, client), config.cluster)
        with opened as own:
            yield own


def local_size(config: Config) -> tuple[int, int]:
    """Workers of the local cluster, and threads of each."""
    actors = actor_roles(config)
    workers = config.cluster.local_workers or actors + 1
    return workers, math.ceil(actors / (workers - 1)) if workers > 1 else 1


@contextlib.contextmanager
def _local(config: Config) -> Iterator[Client]:
    workers, threads = local_size(config)
    seconds = config.cluster.worker_seconds
    with dask.config.set(LOCAL_SETTINGS), _logging() as silence, contextlib.ExitStack() as stack:
        try:
            _start_resource_tracker()
            with starting_processes():
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=threads,
                    processes=True,
                    # Without it, every user of this machine could run code as this one.
                    security=Security.temporary(),
                    memory_limit=0,
                    dashboard_address="127.0.0.1:0",
                    worker_dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
                stack.callback(_close, cluster)
                client = Client(cluster, set_as_default=False, name="seedflow")
                stack.callback(_disconnect, client)
            stack.callback(silence)
            client.wait_for_workers(workers, timeout=seconds)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise PlacementError(
                f"the local cluster of {workers} workers did not start within {seconds:g} s "
                f"(cluster.worker_seconds): {_causes(error)}; in a script, start the run below "
                '`if __name__ == "__main__":`, or use fewer workers (cluster.local_workers)'
            ) from (None if isinstance(error, RuntimeError) else error)  # Dask's says nothing more
        yield client


def _start_resource_tracker() -> None:
    """Start multiprocessing's helper, quiet about what a driver that is killed could not release.

    Before SIGINT is blocked: starting it unblocks SIGINT. It inherits the options for warnings.
    """
    option = "ignore:resource_tracker"
    sys.warnoptions.append(option)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(option)


def _causes(error: BaseException) -> str:
    """An exception and what it came of: Dask's own say little."""
    told = [str(error)]
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
        if str(error) and str(error) not in told:
            told.append(str(error))
    return ", since ".join(told)


def _disconnect(client: Client) -> None:
    """Where the scheduler does not answer any more, that is no reason to fail what is over."""
    with contextlib.suppress(TimeoutError):
        client.close(timeout=10)


def _close(cluster: LocalCluster) -> None:
    """Closed half, its parts would complain about each other."""
    with uninterrupted():
        cluster.close(timeout=30)


@contextlib.contextmanager
def _connect(address: str, security: Security, config: ClusterConfig) -> Iterator[Client]:
    seconds = config.connect_seconds
    try:
        _greet(address, security, seconds)
        client = Client(address, security=security, timeout=seconds, set_as_default=False, name="seedflow")
    except CommClosedError as error:
        raise PlacementError(
            f"the scheduler at {address} closed the connection: {error}; if it uses TLS, its address begins "
            "with tls:// and cluster.tls_ca_file, cluster.tls_cert and cluster.tls_key are needed"
        ) from error
    except (OSError, TimeoutError) as error:
        raise PlacementError(
            f"no Dask scheduler answered at {address} within {seconds:g} s (cluster.connect_seconds): "
            f"{str(error) or 'no answer'}; check the address, that the scheduler runs, and that it can be "
            "reached from here"
        ) from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"cannot connect to a Dask scheduler at {address}: {error}; "
            "expected an address like tcp://10.0.0.1:8786"
        ) from error
    try:
        yield client
    finally:
        _disconnect(client)


def _greet(address: str, security: Security, seconds: float) -> None:
    """Exchange greetings with a scheduler, within `seconds`.

    `Client` waits without limit for one that accepts a connection and then says nothing. In a thread of
    its own, since the caller may be in an event loop.
    """
    if address.startswith("inproc://"):
        return

    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def greet() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.set_result((asyncio.get_running_loop(), task))
        arguments = security.get_connection_args("client")
        comm = await asyncio.wait_for(connect(address, timeout=seconds, **arguments), seconds)
        await comm.close()

    with ThreadPoolExecutor(1, thread_name_prefix="seedflow-greet") as pool:
        greeting = pool.submit(asyncio.run, greet())
        try:
            greeting.result()
        except (KeyboardInterrupt, SystemExit):
            # The thread ends before the block does, and need not wait for an answer.
            loop, task = running.result()
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(task.cancel)
            raise


def _find_scheduler(
    config: ClusterConfig, given: Client | Cluster | str | None = None
) -> tuple[str, Security]:
    """Address and credentials of the scheduler that the caller gave or the settings name."""
    if given is not None and not isinstance(given, str):
        return _scheduler_of(given)
    file = config.scheduler_file or dask.config.get("scheduler-file", None)
    if given is not None:
        source, address = "client", given
    elif config.scheduler is not None:
        source, address = "cluster.scheduler", str(config.scheduler)
    elif file is not None:
        source, address = f"cluster.scheduler_file = {file}", _read_scheduler_file(Path(file), config)
    elif named := dask.config.get("scheduler-address", None):
        source, address = "DASK_SCHEDULER_ADDRESS", str(named)
    else:
        return _scheduler_of(_default_client())
    security = _security(config)
    if address.startswith("tls://") and not security.get_connection_args("client").get("ssl_context"):
        raise ConfigError(
            f"{source} names {address}, which needs TLS, but there are no certificates: "
            "set cluster.tls_ca_file, cluster.tls_cert and cluster.tls_key"
        )
    return address, security


def _default_client() -> Client:
    try:
        current: Client = Client.current()
    except ValueError:
        raise ConfigError(
            "runtime = cluster, but no cluster is named: set cluster.scheduler or cluster.scheduler_file, "
            "export DASK_SCHEDULER_ADDRESS, or use runtime=local"
        ) from None
    return current


def _scheduler_of(given: Client | Cluster) -> tuple[str, Security]:
    """Of a client or cluster of the caller's."""
    status = str(getattr(given.status, "name", given.status))
    if isinstance(given, Client):
        address = given.scheduler.address if given.scheduler is not None else None
        connected = status in ("running", "connecting")
    else:
        address, connected = given.scheduler_address, status == "running"
    if not address or not connected:
        kind = "client" if isinstance(given, Client) else "cluster"
        raise PlacementError(f"the Dask {kind} is {status}: expected one that is connected to its scheduler")
    security = getattr(given, "security", None)
    return str(address), security if isinstance(security, Security) else Security()


def _read_scheduler_file(path: Path, config: ClusterConfig) -> str:
    """The address in a scheduler file, which may appear, and be completed, a little later."""
    deadline = time.monotonic() + config.connect_seconds
    while True:
        try:
            return str(json.loads(path.read_text())["address"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() >= deadline:
                raise PlacementError(
                    f"cluster.scheduler_file = {path}: no scheduler's address there within "
                    f"{config.connect_seconds:g} s (cluster.connect_seconds): {error!r}; start the scheduler "
                    f"with `dask scheduler --scheduler-file {path}`, on a file system that this host sees"
                ) from error
        time.sleep(0.2)


def _security(config: ClusterConfig) -> Security:
    """Credentials from the settings, else from Dask's own configuration."""
    files = {
        "tls_ca_file": config.tls_ca_file,
        "tls_client_cert": config.tls_cert,
        "tls_client_key": config.tls_key,
    }
    given = {name: file for name, file in files.items() if file is not None}
    for name, file in given.items():
        if not Path(file).is_file():
            setting = name.replace("tls_client_", "tls_")
            raise ConfigError(f"cluster.{setting} = {file} is no file; expected a certificate or key (PEM)")
    return Security(**given, require_encryption=True) if given else Security()


@contextlib.contextmanager
def _logging() -> Iterator[Callable[[], None]]:
    """Yields a function that silences Dask until the end of the block.

    What the parts of a cluster say about each other's end is of no use to anybody.
    """
    loggers = [logging.getLogger(name) for name in DASK_LOGGERS]
    levels = [logger.level for logger in loggers]

    def silence() -> None:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)

    try:
        yield silence
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

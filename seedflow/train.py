"""Training: `train` prepares the run directory and hands the run to its runtime.

- ``inline``: everything in this process and thread, in a fixed order. The same config and seed give the
  same bits; for debugging.
- ``local``: processes on this machine, under a Dask cluster that is started for the run.
- ``cluster``: processes on a Dask cluster that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from seedflow.config import Config, changed_settings, fixed_settings_changed, load_config
from seedflow.driver_record import DriverRecord
from seedflow.envs.probe import probe_spec, spec_of
from seedflow.envs.shipped import pack, shipped
from seedflow.errors import ConfigError, EnvironmentFault, RunSuspended, SeedflowError
from seedflow.finished import FinishedRun
from seedflow.interrupts import also_ended_by, sigterm_as_exit
from seedflow.metrics.console import Console, Journal
from seedflow.preflight import check_learner, check_script
from seedflow.run_dir import Prepared, check_run_dir, claimed, default_run_dir, shown, write_config
from seedflow.run_record import RunRecord
from seedflow.saved import Saved, last_words
from seedflow.specs import EnvSpec

if TYPE_CHECKING:
    from distributed import Client
    from distributed.deploy import Cluster

    from seedflow.experiment import Driving, Experiment
    from seedflow.inline import InlineRun

EnvFn = Callable[[], gym.Env[Any, Any]]


def train(
    config: Config | str | Path | Mapping[str, Any],
    client: Client | Cluster | str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    resume_or_start: bool = False,
    block: bool = True,
    env_fn: EnvFn | None = None,
    name: str | None = None,
    restore_replay: str | Path | None = None,
) -> Experiment | InlineRun | FinishedRun:
    """Train an agent.

    Parameters
    ----------
    config
        All settings, or whatever `seedflow.load_config` makes them of: a name, a file, the directory of a
        run, a mapping.
    client
        A Dask client, synchronous or not, a cluster object, or a scheduler's address; implies the ``cluster``
        runtime. It is never closed.
    run_dir
        Where the run keeps everything: config, metrics, checkpoints, logs. Default:
        ``runs/<name>-<time>``.
    resume
        Go on from the newest checkpoint in `run_dir`. Settings that differ from the run's are taken over
        once it goes on.
    resume_or_start
        Resume if `run_dir` holds a run, else start one.
    block
        Wait for the end. Otherwise the running experiment is returned at once (not with ``inline``).
    env_fn
        Makes one environment of one's own, instead of ``env.id``; sent to the actors by cloudpickle.
    name
        For the default of `run_dir`. Default: the config's name or file, else ``env.id``.
    restore_replay
        Directory of another run, or a path or URL of its checkpoints: a new run begins with the replay that
        is there. A run that is resumed has its own.

    Returns
    -------
    Experiment, InlineRun or FinishedRun
        With ``dir``, ``status()``, ``wait()`` and ``stop()``; a context manager that stops the run. A
        `FinishedRun` where all steps had been taken before.

    Raises
    ------
    ConfigError
        If a setting is wrong, the environment that it names cannot be made, or the run directory is in
        use; nothing has been started then.
    EnvironmentFault
        If the environment raises.
    RunFailed
        If a part failed in a way that a restart cannot cure.
    RunSuspended
        If a signal has stopped it, it has saved a checkpoint, and `train.requeue_exit` is set.

    Examples
    --------
    >>> config = seedflow.load_config("cartpole_vtrace", ["seed=7"])  # doctest: +SKIP
    >>> with seedflow.train(config, block=False) as run:  # doctest: +SKIP
    ...     run.wait(timeout=600)
    """
    return run_training(config, client, run_dir, resume, resume_or_start, block, env_fn, name, restore_replay)


def run_training(
    config: Config | str | Path | Mapping[str, Any],
    client: Client | Cluster | str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    resume_or_start: bool = False,
    block: bool = True,
    env_fn: EnvFn | None = None,
    name: str | None = None,
    restore_replay: str | Path | None = None,
    driving: Driving | None = None,
) -> Experiment | InlineRun | FinishedRun:
    """`train`, and how the run is driven: see `seedflow.experiment.Driving`."""
    if name is None and isinstance(config, str | Path):
        name = str(config)
    config = load_config(config)
    if client is not None and config.runtime != "cluster":
        config = config.model_copy(update={"runtime": "cluster"})
    if config.runtime != "inline":
        from seedflow.cluster.dask_settings import with_dask_settings

        config = with_dask_settings(config)
    check_script(config)
    if config.runtime == "inline" and not block:
        raise ConfigError("runtime = 'inline' runs in the calling thread: block must be True")
    directory = Path(run_dir) if run_dir is not None else default_run_dir(name or config.env.id)
    directory = directory.absolute()
    resuming = check_run_dir(directory, resume, resume_or_start)
    replay = _replay_to_restore(config, restore_replay, resume)
    console = _console(config, driving)
    if resuming:
        if _is_finished(directory, config, console):
            return FinishedRun(directory)
        instead = f"seedflow.train(config, run_dir={str(shown(directory))!r}, resume=True, env_fn=...)"
        RunRecord.read(directory).check_env_fn(directory, env_fn is not None, instead)
        _check_changes(directory, config, env_fn is not None)

    pickled = pickle_env(env_fn) if config.runtime != "inline" else None
    modules = pack(config.env.ship)
    spec = _find_spec(config, env_fn, pickled, modules)
    check_learner(config, spec)
    preparation = _prepared(directory, config, RunRecord.of(env_fn), console, resuming, run_dir is None)
    with ExitStack() as signals:
        if block:
            signals.enter_context(sigterm_as_exit())
            signals.enter_context(also_ended_by(config.train.preemption_signal))
        if config.runtime == "inline":
            from seedflow.inline import InlineRun

            with shipped(modules), preparation as prepared, console:
                inline = InlineRun(
                    config, spec, prepared.dir, console, resuming, env_fn, prepared.goes_on, replay
                )
                inline.run()
                return inline
        from seedflow.experiment import Experiment

        experiment = Experiment(
            config, spec, preparation, console, client, resuming, pickled, replay, modules, driving
        )
        if block:
            with experiment:
                experiment.wait()
        return experiment


def take_over(directory: Path, started: Callable[[Path], None]) -> None:
    """Drive a run whose driver has died, to its end.

    Parameters
    ----------
    started
        Called with the directory once the run is driven again.

    Raises
    ------
    ConfigError
        If there is no such run, or it is driven already.
    RunFailed
        If nothing of it is left on the cluster.
    """
    record = DriverRecord.read(directory)
    if record is None or not record.outlived:
        raise ConfigError(f"run_dir = {directory} holds no run that outlives its driver")
    config = load_config(directory)
    cluster = config.cluster.model_copy(update={"scheduler": record.scheduler, "scheduler_file": None})
    from seedflow.cluster import Adoption
    from seedflow.experiment import Driving, Experiment

    adoption = Adoption(record.run, record.generations)
    driving = Driving(outlived=True, adoption=adoption, started=started)
    console = _console(config, driving)
    preparation = _prepared(directory, config, RunRecord.read(directory), console, True, False)
    config = config.model_copy(update={"cluster": cluster})
    with sigterm_as_exit(), also_ended_by(config.train.preemption_signal):
        spec = probe_spec(config.env)
        with Experiment(config, spec, preparation, console, None, True, None, driving=driving) as experiment:
            experiment.wait()


def _console(config: Config, driving: Driving | None) -> Console:
    """Where progress is shown; a driver in the background leaves it to those who follow its run."""
    console = Console if driving is None else Journal
    return console(config.train.total_agent_steps, config.metrics.console)


@contextmanager
def _prepared(
    directory: Path, config: Config, record: RunRecord, console: Console, resuming: bool, new_name: bool
) -> Iterator[Prepared]:
    """Hold a run directory for the time of a run; say where it is, and at the end what was saved."""
    with claimed(directory, new_name) as directory:
        console.title = directory.name
        console.message(f"Run directory: {shown(directory)}")

        def write() -> None:
            write_config(directory, config)
            record.write(directory)

        def go_on() -> None:
            with suppress(ConfigError):  # of another release, say: then what has changed is unknown
                for change in changed_settings(load_config(directory), config):
                    console.message(f"The run goes on with {change}")
            write()

        if not resuming:
            write()
        with (
            _requeued(directory, config),
            last_words(console.message, directory, config.train.total_agent_steps),
        ):
            yield Prepared(directory, go_on if resuming else lambda: None)


@contextmanager
def _requeued(directory: Path, config: Config) -> Iterator[None]:
    """Where a signal ends the block, `train.requeue_exit` is set and there is a checkpoint, say so.

    Raises
    ------
    RunSuspended
        In place of what the signal has raised.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        saved = Saved.newest(directory) if config.train.requeue_exit else None
        if saved is None or saved.agent_steps >= config.train.total_agent_steps:
            raise
        suspended = RunSuspended(f"{shown(directory)} was stopped early ({error}); start it again to go on")
        for note in getattr(error, "__notes__", ()):
            suspended.add_note(note)
        raise suspended from error


def _is_finished(directory: Path, config: Config, console: Console) -> bool:
    """Whether the run has taken all its steps already, which is then said."""
    saved, total = Saved.newest(directory), config.train.total_agent_steps
    if saved is None or saved.agent_steps < total:
        return False
    console.message(
        f"{shown(directory)} is already finished, {saved.agent_steps:,} of {total:,} steps; raise "
        "train.total_agent_steps to go on with it"
    )
    return True


def _replay_to_restore(config: Config, path: str | Path | None, resume: bool) -> str | None:
    """Where another run's replay is, in full.

    Raises
    ------
    ConfigError
        If this run cannot begin with one.
    """
    if path is None:
        return None
    if resume:
        raise ConfigError(
            f"restore_replay = {path}: a run that is resumed goes on with its own replay; leave one of the "
            "two out"
        )
    if not config.has_replay:
        raise ConfigError(
            f"restore_replay = {path}: algo.name = {config.algo.name!r} learns without a replay; choose "
            "algo.name=r2d2"
        )
    return str(path) if "://" in str(path) else str(Path(path).absolute())


def _check_changes(directory: Path, config: Config, own_env: bool) -> None:
    """Refuse settings with which what a run has learned would mean something else.

    Raises
    ------
    ConfigError
        Names them.
    """
    try:
        before = load_config(directory)
    except ConfigError:  # of another release, say: then what has changed is unknown
        return
    changes = fixed_settings_changed(before, config)
    if own_env:
        changes = [change for change in changes if not change.startswith("env.id ")]
    if changes:
        raise ConfigError(
            f"{shown(directory)} cannot go on with {' and '.join(changes)}: what it has learned belongs to "
            "what was; resume with the run's own setting, or start a new run in another directory"
        )


def _find_spec(config: Config, env_fn: EnvFn | None, pickled: bytes | None, modules: bytes | None) -> EnvSpec:
    """What the environment shows and takes; found out by making one."""
    if config.runtime != "inline":
        return probe_spec(config.env, env_fn=pickled, ship=modules)
    try:  # the environment shares this process anyway
        with shipped(modules):
            return spec_of(config.env, env_fn)
    except SeedflowError:
        raise
    except Exception as error:
        label = "env_fn" if env_fn is not None else f"env.id = {config.env.id!r}"
        raise EnvironmentFault(
            f"{label} raised {type(error).__name__} in its first steps: {error}"
        ) from error


def pickle_env(env_fn: EnvFn | None) -> bytes | None:
    """The user's environment as bytes for the actors; lambdas and local classes included."""
    if env_fn is None:
        return None
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(env_fn))
    except Exception as error:  # whatever a user's object raises when it is pickled
        raise ConfigError(
            f"env_fn = {env_fn!r} cannot be sent to the actors ({error}); make it a function that builds the "
            "environment from what it imports, without open files, locks or running processes"
        ) from error

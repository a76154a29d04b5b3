"""Training: `train` prepares the run directory and hands the run to its runtime.

- ``inline``: everything in this process and thread, in a fixed order. The same config and seed give the
  same bits; for debugging.
- ``local``: processes on this machine, under a Dask cluster that is started for the run.
- ``cluster``: processes on a Dask cluster that is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from seedflow.config import Config
from seedflow.envs.probe import probe_spec, spec_of
from seedflow.errors import ConfigError
from seedflow.run_dir import check_run_dir, default_run_dir, locked, write_config

if TYPE_CHECKING:
    from distributed import Client

    from seedflow.experiment import Experiment
    from seedflow.inline import InlineRun

EnvFn = Callable[[], gym.Env[Any, Any]]


def train(
    config: Config,
    client: Client | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    resume_or_start: bool = False,
    block: bool = True,
    env_fn: EnvFn | None = None,
) -> Experiment | InlineRun:
    """Train an agent.

    Parameters
    ----------
    config
        All settings; see `seedflow.load_config`.
    client
        A Dask client whose cluster is used; implies the ``cluster`` runtime. It is never closed.
    run_dir
        Where the run keeps everything: config, metrics, checkpoints, logs. Default:
        ``runs/<environment>-<time>``.
    resume
        Go on from the newest checkpoint in `run_dir`.
    resume_or_start
        Resume if `run_dir` holds a run, else start one.
    block
        Wait for the end. Otherwise the running experiment is returned at once (not with ``inline``).
    env_fn
        Makes one environment of one's own, instead of ``env.id``; sent to the actors by cloudpickle.

    Returns
    -------
    Experiment or InlineRun
        With ``dir``, ``status()``, ``wait()`` and ``stop()``; a context manager that stops the run.

    Raises
    ------
    ConfigError
        If a setting is wrong, or the run directory is in use; nothing has been started then.
    EnvironmentFault
        If the environment cannot be made.
    RunFailed
        If a part failed in a way that a restart cannot cure.

    Examples
    --------
    >>> config = seedflow.load_config("cartpole_vtrace", ["seed=7"])  # doctest: +SKIP
    >>> with seedflow.train(config, block=False) as run:  # doctest: +SKIP
    ...     run.wait(timeout=600)
    """
    if client is not None and config.runtime != "cluster":
        config = config.model_copy(update={"runtime": "cluster"})
    if config.runtime == "inline" and not block:
        raise ConfigError("runtime = 'inline' runs in the calling thread: block must be True")
    directory = Path(run_dir) if run_dir is not None else default_run_dir(config.env.id)
    directory = directory.absolute()
    resuming = check_run_dir(directory, resume, resume_or_start)
    if config.runtime == "inline":  # the environment shares this process anyway
        pickled, spec = None, spec_of(config.env, env_fn)
    else:
        pickled = pickle_env(env_fn)
        spec = probe_spec(config.env, env_fn=pickled)
    with ExitStack() as stack:
        stack.enter_context(locked(directory))
        if not resuming:
            write_config(directory, config)
        if config.runtime == "inline":
            from seedflow.inline import InlineRun

            inline = InlineRun(config, spec, directory, resume=resuming, env_fn=env_fn)
            inline.run()
            write_config(directory, config)
            return inline
        from seedflow.experiment import Experiment

        experiment = Experiment(config, spec, directory, client, resume=resuming, env_fn=pickled)
        write_config(directory, config)  # of a resumed run only now that its checkpoint was seen to fit
        experiment.on_stop(stack.pop_all().close)
    if block:
        with experiment:
            experiment.wait()
    return experiment


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

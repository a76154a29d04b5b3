"""A learner's life as a role: open the transport, train, report, save, and end its actors."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from seedflow.config import Config
from seedflow.errors import ConfigError, SeedflowError, TransportError
from seedflow.learner.learner import Learner
from seedflow.learner.threads import LoopThreads
from seedflow.metrics import METRICS_FILE, JsonlSink, Sink, TensorBoardSink
from seedflow.private import private_directory
from seedflow.roles import EXIT_DONE, EXIT_HOPELESS, Message, RoleChannel, failure
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.control import ControlServer
from seedflow.rpc.gateway_keeper import GatewayKeeper
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.leases import Lease, LeaseTable
from seedflow.rpc.listener import remove_socket
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.tls import Tls
from seedflow.specs import EnvSpec

log = logging.getLogger(__name__)

SPARE_BLOCKS = 2
FAREWELL_SECONDS = 5.0  # how long actors may take to leave at the end of a run
JOIN_SECONDS = 60.0


@dataclass(frozen=True)
class LearnerStart:
    """The start message of a learner, checked.

    Attributes
    ----------
    host
        Address that the gateway binds: the Dask worker's own.
    resume
        Go on from the run's newest checkpoint.
    tls
        The worker's certificate, where the Dask cluster uses TLS.
    """

    config: Config
    spec: EnvSpec
    run_dir: Path
    host: str
    resume: bool
    tls: Tls | None = None

    @classmethod
    def parse(cls, message: Message) -> LearnerStart:
        """Check a start message.

        Raises
        ------
        ConfigError
            Names what is missing or wrong.
        """
        try:
            return cls(
                config=Config.model_validate(message["config"]),
                spec=EnvSpec.from_json(message["spec"]),
                run_dir=Path(message["run_dir"]),
                host=str(message["host"]),
                resume=bool(message["resume"]),
                tls=Tls.from_json(message.get("tls")),
            )
        except KeyError as error:
            raise ConfigError(f"the learner's start message lacks {error}") from error
        except (ValueError, TypeError, TransportError) as error:
            raise ConfigError(f"the learner's start message is wrong: {error}") from error


def lease_table(config: Config, spec: EnvSpec) -> LeaseTable:
    """The lease table of a run: its training actors, one evaluation actor if it evaluates, and spares."""
    return LeaseTable(
        train_blocks=config.max_envs // config.envs_per_actor,
        eval_blocks=1 if config.eval.every else 0,
        spare_blocks=SPARE_BLOCKS,
        groups=config.actor.groups,
        envs=config.actor.envs_per_group,
        fingerprint=spec.fingerprint,
        lease_seconds=config.inference.lease_seconds,
    )


def make_sinks(config: Config, run_dir: Path, resume_step: int | None) -> list[Sink]:
    """The files that a run's metrics go to.

    Where an earlier start of the run left metrics but no checkpoint, `resume_step` is None and what it had
    recorded is left behind.
    """
    if resume_step is None and (run_dir / METRICS_FILE).exists():
        resume_step = 0
    sinks: list[Sink] = [JsonlSink(run_dir / METRICS_FILE, resume_step)]
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSink(run_dir / "tensorboard", resume_step))
    return sinks


def run_learner(channel: RoleChannel, token: str, start: LearnerStart) -> int:
    """Train until all steps are taken or the supervisor asks to stop; returns the exit code."""

    def note(text: str) -> None:
        log.info("%s", text)
        channel.send({"kind": "note", "text": text})

    def silent(lease: Lease) -> None:
        actor = {"role": lease.role, "index": lease.index, "generation": lease.generation}
        channel.send({"kind": "silent", **actor})

    private_directory(start.run_dir)
    config, spec = start.config, start.spec
    with ExitStack() as stack:
        layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
        table = lease_table(config, spec)
        slab = stack.enter_context(Slab(layout, table.blocks))
        control = ControlServer(layout, slab, table, token)
        stack.callback(control.close)
        channel.at_forced_exit = lambda: remove_socket(control.path)
        gateway = None
        if config.rpc.path != "slab":
            gateway = GatewayProcess(
                token,
                str(control.path),
                config.rpc.interface or start.host,
                config.rpc.ports,
                spec,
                groups=layout.groups,
                envs=layout.envs,
                tls=start.tls,
            )
            stack.enter_context(gateway)
            gateway.start()
        try:
            learner = Learner(config, spec, control, start.run_dir, note, silent)
            stack.callback(learner.close)
            attempt = learner.restore() if start.resume else 0
        except SeedflowError as error:
            channel.send(failure(error, retryable=False))
            return EXIT_HOPELESS
        resume_step = learner.progress.agent_steps if start.resume else None
        sinks = [stack.enter_context(s) for s in make_sinks(config, start.run_dir, resume_step)]
        loops = LoopThreads(learner, config.inference.torch_threads, training_threads(config))
        endpoint = Endpoint(
            str(control.path),
            None if gateway is None else gateway.address,
            None if start.tls is None else start.tls.name,
        )
        keeper = None if gateway is None else GatewayKeeper(gateway, note)
        channel.send({"kind": "endpoint", "endpoint": endpoint.to_json(), "attempt": attempt})
        channel.send({"kind": "state", "state": "running"})
        loops.start()
        try:
            _report(learner, loops, keeper, channel, sinks)
        finally:
            loops.stop()
            try:
                loops.join(JOIN_SECONDS)
            finally:
                # Inference has ended, too: the checkpoint and the last report count the same steps.
                if loops.trained:
                    learner.save()
        _publish(learner, sinks, channel)
        finished = learner.done
        control.tell_exit("the run has taken all its steps" if finished else "the run was stopped")
        deadline = time.monotonic() + FAREWELL_SECONDS
        while control.counts().active and time.monotonic() < deadline:
            control.poll(0.1)
        channel.send({"kind": "done", "reason": "finished" if finished else "stopped"})
    return EXIT_DONE


def training_threads(config: Config) -> int:
    """Torch threads of the training loop: as set, else the cores that nobody else is meant to use."""
    if config.train.torch_threads is not None:
        return config.train.torch_threads
    taken = 1 + (config.actor.count if config.runtime == "local" else 0)
    threads = max(1, len(os.sched_getaffinity(0)) - taken)
    log.info("training uses %d torch thread(s); set train.torch_threads to change that", threads)
    return threads


def _report(
    learner: Learner,
    loops: LoopThreads,
    keeper: GatewayKeeper | None,
    channel: RoleChannel,
    sinks: list[Sink],
) -> None:
    """Publish metrics every few seconds and keep the gateway up, until the loops end or must."""
    report_at = time.monotonic() + learner.config.metrics.every_seconds
    while not loops.ended.wait(0.2) and not channel.stop_requested.is_set():
        if keeper is not None:
            keeper.look()
        if time.monotonic() >= report_at:
            if keeper is not None:
                for name, value in keeper.metrics().items():
                    learner.metrics.set(name, value)
            _publish(learner, sinks, channel)
            report_at += learner.config.metrics.every_seconds


def _publish(learner: Learner, sinks: list[Sink], channel: RoleChannel) -> None:
    values = learner.measure()
    for sink in sinks:
        sink.write(learner.progress.agent_steps, values)
    channel.send({"kind": "metrics", "values": values})

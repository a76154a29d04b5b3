"""A learner's life as a role: open the transport, train, report, save, and end its actors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from seedflow.checkpoints import Fence, Writer, open_store
from seedflow.config import Config
from seedflow.errors import CheckpointFenced, SeedflowError
from seedflow.learner.driving import DrivenLearner, make_learner
from seedflow.learner.leases import lease_table
from seedflow.learner.pulse import Pulse
from seedflow.learner.start import LearnerStart
from seedflow.learner.training_process import StartStopped, TrainingFailed
from seedflow.metrics import METRICS_FILE, JsonlSink, Sink, TensorBoardSink
from seedflow.metrics.names import LEARNER_RESTARTS
from seedflow.metrics.prometheus import PrometheusSink
from seedflow.private import private_directory
from seedflow.roles import EXIT_DONE, EXIT_FAILED, EXIT_HOPELESS, FINISHED, STOPPED, RoleChannel, failure
from seedflow.rpc.connection import Endpoint
from seedflow.rpc.control import ControlServer
from seedflow.rpc.gateway_keeper import GatewayKeeper
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.leases import Lease
from seedflow.rpc.listener import remove_socket
from seedflow.rpc.slab import BlockLayout, Slab

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 5.0  # how long actors may take to leave at the end of a run
FENCE_SECONDS = 1.0  # pause between two looks whether a later start of the learner has taken over


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
                start.host,
                config.rpc.ports,
                spec,
                groups=layout.groups,
                envs=layout.envs,
                lease_seconds=config.inference.lease_seconds,
                tls=start.tls,
            )
            stack.enter_context(gateway)
            gateway.start()
        try:
            learner = stack.enter_context(
                make_learner(
                    start, control, note, silent, Pulse(channel.board), channel.stop_requested.is_set
                )
            )
        except StartStopped:
            channel.send({"kind": "done", "reason": "stopped"})
            return EXIT_DONE
        except SeedflowError as error:
            failed = error.failed if isinstance(error, TrainingFailed) else failure(error, retryable=False)
            channel.send(failed)
            return EXIT_HOPELESS
        progress = learner.progress
        fence = Fence(
            open_store(start.run_dir / "checkpoints"), Writer.this(run=start.run, generation=start.generation)
        )
        with fence.writing():
            sinks = make_sinks(config, start.run_dir, progress.agent_steps if learner.attempt else None)
        if (served := _serve_metrics(start, note)) is not None:
            sinks.append(served)
        for sink in sinks:
            stack.enter_context(sink)
        endpoint = Endpoint(
            str(control.path),
            None if gateway is None else gateway.address,
            None if start.tls is None else start.tls.name,
        )
        keeper = None if gateway is None else GatewayKeeper(gateway, note)
        channel.send({"kind": "endpoint", "endpoint": endpoint.to_json(), "attempt": learner.attempt})
        channel.send({"kind": "state", "state": "running"})
        learner.start()
        reports = _Reports(learner, channel, sinks, fence, start.generation)
        try:
            _report(reports, keeper, config.metrics.every_seconds)
            learner.finish()
        except TrainingFailed as error:
            channel.send(error.failed)
            return EXIT_FAILED
        except CheckpointFenced as error:
            channel.send(failure(error, retryable=False))
            return EXIT_FAILED
        except BaseException:
            learner.finish()
            raise
        reports.publish()
        finished = progress.agent_steps >= config.train.total_agent_steps
        if finished:
            _dismiss_actors(control)
        # Else actors look for the learner that may take this one's place, until they are stopped themselves.
        channel.send({"kind": "done", "reason": FINISHED if finished else STOPPED})
    return EXIT_DONE


def _serve_metrics(start: LearnerStart, note: Callable[[str], None]) -> Sink | None:
    """What Prometheus reads, if it is wanted; a run does not fail because of it."""
    port = start.config.metrics.prometheus_port
    if port is None:
        return None
    try:
        sink = PrometheusSink(start.run_dir.name, start.host, port)
    except OSError as error:
        note(f"metrics.prometheus_port = {port}: not served, for {start.host} cannot be bound there: {error}")
        return None
    note(f"metrics for Prometheus: {sink.url}")
    return sink


def _dismiss_actors(control: ControlServer) -> None:
    """Tell every actor that the run is over, and give them a while to leave."""
    control.tell_exit("the run has taken all its steps")
    deadline = time.monotonic() + FAREWELL_SECONDS
    while control.counts().active and time.monotonic() < deadline:
        control.poll(0.1)


class _Reports:
    """Where the measurements of a learner go: the files of the run, and the supervisor.

    Nothing is written once a later start of the learner has taken over: that is a `CheckpointFenced`.
    """

    def __init__(
        self,
        learner: DrivenLearner,
        channel: RoleChannel,
        sinks: list[Sink],
        fence: Fence,
        restarts: int,
    ) -> None:
        self.learner, self.channel, self.fence = learner, channel, fence
        self._sinks, self._restarts = sinks, restarts

    def publish(self, more: Mapping[str, float] = MappingProxyType({})) -> None:
        """Write what was measured since the last call, and `more`."""
        values = self.learner.measure() | {LEARNER_RESTARTS: float(self._restarts)} | dict(more)
        with self.fence.writing():
            for sink in self._sinks:
                sink.write(self.learner.progress.agent_steps, values)
        self.channel.send({"kind": "metrics", "values": values})


def _report(reports: _Reports, keeper: GatewayKeeper | None, every_seconds: float) -> None:
    """Publish metrics every few seconds and keep the gateway up, until the learner ends or must."""
    now = time.monotonic()
    report_at, look_at = now + every_seconds, now + FENCE_SECONDS
    while not reports.learner.wait(0.2) and not reports.channel.stop_requested.is_set():
        if keeper is not None:
            keeper.look()
        if time.monotonic() >= look_at:
            reports.fence.check()
            look_at = time.monotonic() + FENCE_SECONDS
        if time.monotonic() >= report_at:
            reports.publish({} if keeper is None else keeper.metrics())
            report_at += every_seconds

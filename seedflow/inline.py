"""The one-process runtime: the parts of a distributed run, driven in a fixed order by one thread.

Slab, lease table, batcher, unroll slots and all three loops are those of a distributed run; actors reach
them through `InlineTransport`. Nothing depends on time, so that the same config and seed give the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import torch

from seedflow.actor.start import shape_of
from seedflow.actor.stepping import ActorLoop, GroupFault
from seedflow.config import Config
from seedflow.envs import env_seed, make_group
from seedflow.errors import ConfigError, EnvironmentFault
from seedflow.exact import Actor, go_on_from, settings_of, state_of, why_not
from seedflow.finished import PlainStatus
from seedflow.interrupts import STOPPING, between_steps
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.learner.session import make_sinks
from seedflow.learner.trainer import EXACT
from seedflow.metrics import Console, Sink
from seedflow.nested import Arrays
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import Registration, Role
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.specs import EnvSpec


class InlineRun:
    """A run in this process; `run` does all the work.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    directory
        The run directory.
    console
        Shows the progress.
    resume
        Go on from its newest checkpoint.
    env_fn
        The user's environment, if any.
    restore_replay
        Another run whose replay to begin with.
    on_start
        Called when all is made and restored, before the first step.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        directory: Path,
        console: Console,
        resume: bool = False,
        env_fn: Callable[[], gym.Env[Any, Any]] | None = None,
        on_start: Callable[[], None] = lambda: None,
        restore_replay: str | None = None,
    ) -> None:
        self.dir = directory
        self._console, self._on_start = console, on_start
        # No deadline: a batch must not depend on how long something took.
        inference = config.inference.model_copy(update={"deadline_ms": 0.0})
        self._config = config.model_copy(update={"inference": inference})
        self._spec, self._resume, self._env_fn = spec, resume, env_fn
        self._restore_replay = restore_replay
        self._values: dict[str, float] = {}
        self._stopping = self._ended = False

    def __repr__(self) -> str:
        return f"<InlineRun {self.status().phase} in {self.dir}>"

    def status(self) -> PlainStatus:
        """The phase of the run and the metrics of its last report."""
        return PlainStatus("ended" if self._ended else "running", dict(self._values))

    def stop(self) -> None:
        """Make `run` save a checkpoint and return; may be called from another thread."""
        self._stopping = True

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the run has ended; `seedflow.train` returns when it has."""
        return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def run(self) -> None:
        """Train until all steps are taken or `stop` is called.

        A checkpoint is saved at the end, also on Ctrl-C and when an environment fails.

        Raises
        ------
        EnvironmentFault
            If an environment raised; its exception is the cause.
        """
        config, spec = self._config, self._spec
        threads = torch.get_num_threads()
        torch.set_num_threads(config.train.torch_threads or 1)
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, threads)
            console = self._console
            layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
            table = lease_table(config, spec)
            slab = stack.enter_context(Slab(layout, table.blocks))
            transport = InlineTransport(layout, slab, table)
            stack.callback(transport.close)
            learner = Learner(config, spec, transport, self.dir, console.message)
            stack.callback(learner.close)
            attempt = learner.begin(self._resume, self._restore_replay)
            resume_step = learner.progress.agent_steps if self._resume else None
            sinks = [stack.enter_context(s) for s in make_sinks(config, self.dir, resume_step)]
            actors = [
                stack.enter_context(self._actor(transport, role, index, attempt))
                for role, index in self._roles()
            ]
            if config.env.exact:
                self._go_on_exactly(transport, learner, actors)
            elif self._resume:
                console.message("episodes that were under way begin anew (env.exact would go on with them)")
            self._on_start()
            with _saved_at_the_end(learner):
                self._drive(learner, [loop for _, loop in actors], [*sinks, console])
            self._publish(learner, [*sinks, console])
        self._ended = True

    def _roles(self) -> Iterator[tuple[Role, int]]:
        yield from (("train", index) for index in range(self._config.actor.count))
        if self._config.eval.every:
            yield "eval", 0

    def _go_on_exactly(self, transport: InlineTransport, learner: Learner, actors: list[Actor]) -> None:
        """Take up what was under way, and keep it in checkpoints from now on.

        Raises
        ------
        ConfigError
            On a GPU, which does not give the same bits twice.
        """
        if learner.algorithm.learning.parameters.parameter.device.type != "cpu":
            raise ConfigError("env.exact = true needs device=cpu: a GPU does not give the same bits twice")
        trainer = learner.trainer
        if (checkpoint := trainer.restored) is not None:
            settings, arrays = checkpoint.state.get(EXACT), checkpoint.section(EXACT)
            if settings is None or not arrays:
                reason: str | None = "the checkpoint was saved without env.exact, or in the middle of a step"
            else:
                reason = why_not(settings, self._config)
            if reason is None:
                given = {name: tensor.numpy() for name, tensor in arrays.items()}
                go_on_from(given, transport, learner, actors)
            else:
                self._console.message(f"the run does not go on exactly, and begins new episodes: {reason}")

        def exactly() -> tuple[dict[str, Any], Arrays]:
            arrays = state_of(transport, learner, actors)
            return (settings_of(self._config), arrays) if arrays is not None else ({}, {})

        trainer.exactly = exactly

    @contextmanager
    def _actor(self, transport: InlineTransport, role: Role, index: int, attempt: int) -> Iterator[Actor]:
        groups, envs = shape_of(self._config, role)
        connection = transport.connect(Registration(role, index, 0, self._spec.fingerprint, groups, envs))
        name = "actor" if role == "train" else "eval"
        if self._config.env.exact:
            attempt = 0  # episodes are numbered on, and none is played twice
        seeds = [env_seed(self._config.seed, name, i, attempt) for i in connection.env_ids]
        made = [
            make_group(self._config.env, envs, seeds[g * envs : (g + 1) * envs], env_fn=self._env_fn)
            for g in range(groups)
        ]
        try:
            with ActorLoop(connection, made) as loop:
                yield connection, loop
        finally:
            connection.close()

    def _drive(self, learner: Learner, actors: list[ActorLoop], sinks: list[Sink]) -> None:
        # A checkpoint taken in the middle of a step would not go on with the same bits.
        with between_steps() as interrupts:
            self._alternate(learner, actors, sinks, lambda: self._stopping or interrupts.waiting)
            if interrupts.waiting:
                self._console.message(STOPPING)

    def _alternate(
        self,
        learner: Learner,
        actors: list[ActorLoop],
        sinks: list[Sink],
        stopping: Callable[[], bool],
    ) -> None:
        every = self._config.metrics.every_seconds
        report_at = time.monotonic() + every
        while not learner.done and not stopping():
            for actor in actors:
                try:
                    while actor.step(0.0) is not None:
                        pass
                except GroupFault as fault:
                    if isinstance(fault.__cause__, KeyboardInterrupt):
                        raise fault.__cause__ from None
                    raise EnvironmentFault(f"{fault}: {fault.__cause__!r}") from fault.__cause__
            while learner.inference.step(0.0):
                pass
            while learner.prefetch.step() or learner.training.step():
                pass
            learner.save_if_due()
            if time.monotonic() >= report_at:
                self._publish(learner, sinks)
                report_at = time.monotonic() + every

    def _publish(self, learner: Learner, sinks: list[Sink]) -> None:
        self._values = learner.measure()
        for sink in sinks:
            sink.write(learner.progress.agent_steps, self._values)


@contextmanager
def _saved_at_the_end(learner: Learner) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, SystemExit, EnvironmentFault):
        learner.trainer.exactly = None  # it may be in the middle of a step
        learner.save()
        raise
    learner.save()

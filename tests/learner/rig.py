"""A learner on a counting environment, with an actor over any path."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from seedflow.actor.stepping import ActorLoop
from seedflow.algos import make_algorithm
from seedflow.config import Config, parse_config
from seedflow.envs import env_seed, make_group, probe_spec
from seedflow.learner.arena import SharedArena
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.learner.serving import Serving
from seedflow.learner.shared import Shared
from seedflow.learner.trainer import Trainer
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint, Exit
from seedflow.rpc.control import ControlServer
from seedflow.rpc.gateway_process import GatewayProcess
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.transport import LearnerTransport
from seedflow.specs import EnvSpec

COUNTING = {
    "env": {
        "id": "seedflow/Synthetic-v0",
        "kwargs": {
            "content": "counting",
            "observation_shape": [3],
            "observation_dtype": "float32",
            "num_actions": 5,
            "episode_length": [2, 5],
            "frames_per_step": 4,
        },
    },
    "actor": {"count": 1, "groups": 1, "envs_per_group": 4},
    "rollout": {"unroll": 6, "prefetch": 3},
    "train": {"batch": 2},
    "network": {"core": "lstm", "core_size": 8, "inputs": ["previous_action", "previous_reward"]},
}


def counting_config(**sections: object) -> Config:
    return parse_config(COUNTING | sections)


def gathered_unrolls(config: Config, path: str, run_dir: Path) -> list[dict[str, np.ndarray]]:
    """Serve one actor over `path` (slab or grpc) until all batches are filled; returns their fields."""
    with learner_with_actor(config, path, run_dir) as learner:
        filled = 0
        while filled < len(learner.trainer.pipeline.batches):
            learner.inference.step(5.0)
            filled += learner.prefetch.step()
        return [
            {name: value.numpy().copy() for name, value in batch.fields.items()}
            | {f"state {i}": value.numpy().copy() for i, value in enumerate(batch.state)}
            for batch in learner.trainer.pipeline.batches
        ]


class SplitLearner:
    """A learner whose halves share memory as two processes do, each with a mapping of its own."""

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        transport: LearnerTransport,
        run_dir: Path,
        report: Callable[[str], None],
    ) -> None:
        acting, learning = make_algorithm(config, spec), make_algorithm(config, spec)
        arena = SharedArena()
        self._serving_side = Shared(config, spec, acting, arena)
        inherited = [os.dup(fd) for fd in arena.fds]
        self._training_side = shared = Shared(config, spec, learning, SharedArena(inherited))
        self.algorithm, self.progress = learning, shared.progress
        self.trainer = Trainer(
            config, spec, learning, shared, run_dir, transport.wake, report, acts_here=False
        )
        self.serving = Serving(config, acting, self._serving_side, transport, report, lambda lease: None)
        self.inference = self.serving.inference
        self.prefetch, self.training = self.trainer.prefetch, self.trainer.training

    def close(self) -> None:
        self.trainer.close()
        self._training_side.close()
        self._serving_side.close()


AnyLearner = TypeVar("AnyLearner", Learner, SplitLearner)


@contextmanager
def learner_with_actor(
    config: Config,
    path: str,
    run_dir: Path,
    make: Callable[..., AnyLearner] = Learner,  # type: ignore[assignment]
) -> Iterator[AnyLearner]:
    """A learner whose loops the test drives, and an actor in a thread."""
    config = config.model_copy(update={"rpc": config.rpc.model_copy(update={"path": path})})
    spec = probe_spec(config.env)
    token = secrets.token_hex(32)
    layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
    with ExitStack() as stack:
        table = lease_table(config, spec)
        slab = stack.enter_context(Slab(layout, table.blocks))
        control = stack.enter_context(ControlServer(layout, slab, table, token))
        gateway = None
        if path == "grpc":
            gateway = stack.enter_context(
                GatewayProcess(
                    token,
                    str(control.path),
                    "127.0.0.1",
                    None,
                    spec,
                    groups=layout.groups,
                    envs=layout.envs,
                    lease_seconds=table.lease_seconds,
                )
            )
            gateway.start()
        learner = make(config, spec, control, run_dir, lambda text: None)
        stack.callback(learner.close)
        endpoint = Endpoint(str(control.path), gateway.address if gateway else None)
        actor = threading.Thread(target=_act, args=(config, spec, endpoint, token, layout))
        actor.start()
        try:
            yield learner
        finally:
            control.tell_exit("the test is over")
            while actor.is_alive():
                control.poll(0.05)
            actor.join(30.0)


def _act(config: Config, spec, endpoint: Endpoint, token: str, layout: BlockLayout) -> None:  # type: ignore[no-untyped-def]
    registration = Registration("train", 0, 0, spec.fingerprint, layout.groups, layout.envs)
    try:
        with connect(endpoint, token, registration, layout, config.rpc, 5.0) as connection:
            seeds = [env_seed(config.seed, "actor", i, 0) for i in connection.env_ids]
            envs = layout.envs
            groups = [
                make_group(config.env, envs, seeds[g * envs : (g + 1) * envs]) for g in range(layout.groups)
            ]
            with ActorLoop(connection, groups) as loop:
                while True:
                    loop.step(5.0)
    except Exit:
        return

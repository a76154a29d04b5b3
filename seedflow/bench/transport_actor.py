"""The actor's side of the transport benchmark: a process whose environments cost one copy.

It speaks through the same client and double buffering as any actor. Its environments only write a prepared
observation into their rows, which every environment has to do. Standard input brings one JSON object
with what to connect to, and its end ends the process.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedflow.actor.stepping import ActorLoop
from seedflow.config.tree import RpcConfig
from seedflow.envs.base import GroupEnv, Rows, write_first_flags
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Endpoint, Exit
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout
from seedflow.specs import EnvSpec

CONNECT_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0


class CopyGroup(GroupEnv):
    """Environments without rules: a step writes an observation that was made beforehand."""

    def __init__(self, spec: EnvSpec, num_envs: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        generator = np.random.default_rng(num_envs)
        self._observations = {
            leaf.name: generator.integers(0, 255, (num_envs, *leaf.shape)).astype(leaf.dtype)
            for leaf in spec.observation
        }

    def reset(self, rows: Rows) -> None:
        write_first_flags(rows)
        self._write(rows)

    def step(self, actions: NDArray[np.int64], rows: Rows) -> None:
        rows["first"][...] = False
        rows["frames"][...] = 1
        self._write(rows)

    def close(self) -> None:
        """Nothing is held."""

    def _write(self, rows: Rows) -> None:
        for name, observation in self._observations.items():
            rows[name][...] = observation


def run(start: dict[str, Any]) -> None:
    """Step until the learner ends the lease or standard input closes."""
    spec = EnvSpec.from_json(start["spec"])
    groups, envs = int(start["groups"]), int(start["envs"])
    registration = Registration("train", int(start["index"]), 0, spec.fingerprint, groups, envs)
    connection = connect(
        Endpoint.from_json(start["endpoint"]),
        str(start["token"]),
        registration,
        BlockLayout(spec, groups, envs),
        RpcConfig(path=start["path"]),
        HEARTBEAT_SECONDS,
    )
    stopped = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        stopped.set()

    threading.Thread(target=watch, daemon=True).start()
    with connection, ActorLoop(connection, [CopyGroup(spec, envs) for _ in range(groups)]) as loop:
        while not stopped.is_set():
            loop.step(1.0)


def main() -> None:
    """Entry point of ``python -m seedflow.bench.transport_actor``."""
    try:
        run(json.loads(sys.stdin.readline()))
    except Exit:
        return


if __name__ == "__main__":
    main()

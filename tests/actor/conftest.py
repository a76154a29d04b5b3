"""A learner that answers every ring with a fixed action, and actor processes that connect to it."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from seedflow.config import Config
from seedflow.envs import make_group
from seedflow.roles import RoleProcess
from seedflow.rpc.control import ControlServer
from seedflow.rpc.leases import Lease, LeaseTable
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.transport import FaultReported, GroupRang, LeaseClosed, LeaseOpened
from seedflow.specs import EnvSpec

TOKEN = "5eedf10a" * 8
SYNTHETIC = {
    "id": "seedflow/Synthetic-v0",
    "kwargs": {"observation_shape": [2], "content": "counting", "episode_length": 3},
}


def make_config(**sections: Any) -> Config:
    """A small run: two groups of two environments an actor, impatient actors."""
    base: dict[str, Any] = {
        "env": SYNTHETIC,
        "actor": {"groups": 2, "envs_per_group": 2, "reconnect_seconds": 30, "heartbeat_seconds": 0.5},
        "eval": {"envs": 2},
        "metrics": {"every_seconds": 0.05},
        "rpc": {"path": "slab"},
    }
    return Config.model_validate(
        {key: {**base.get(key, {}), **sections.get(key, {})} for key in {*base, *sections}}
    )


def spec_of(config: Config) -> EnvSpec:
    with contextlib.closing(make_group(config.env, 1, [np.random.SeedSequence(1)])) as group:
        return group.spec


def wait_for(condition: Callable[[], Any], timeout: float = 60.0) -> Any:
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(0.02)
    return value


class FixedActionLearner:
    """The learner's end of the control socket, driven by a thread of its own.

    Attributes
    ----------
    opened, closed, faults, kinds
        What happened, in order; `kinds` are those of the faults.
    rows
        For each of the first 10,000 requests the lease id, the group, and copies of its rows.
    rings
        How many requests there were, by lease id.
    answering
        Cleared, rings stay unanswered.
    """

    def __init__(self, config: Config, spec: EnvSpec, lease_seconds: float = 30.0) -> None:
        layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
        table = LeaseTable(2, 1, 2, layout.groups, layout.envs, spec.fingerprint, lease_seconds)
        self._slab = Slab(layout, table.blocks)
        self._server = ControlServer(layout, self._slab, table, TOKEN)
        self.endpoint = {"socket": str(self._server.path), "gateway": None}
        self.opened: list[Lease] = []
        self.closed: list[tuple[Lease, str]] = []
        self.faults: list[str] = []
        self.kinds: list[str] = []
        self.rows: list[tuple[int, int, dict[str, np.ndarray]]] = []
        self.rings: Counter[int] = Counter()
        self.answering = threading.Event()
        self.answering.set()
        self._finish = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="learner")
        self._thread.start()

    def finish(self) -> None:
        """End the run."""
        self._finish.set()
        self._server.wake()

    def close(self) -> None:
        """Go away."""
        self._stop.set()
        self._server.wake()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self._finish.is_set():
                    self._server.tell_exit("all steps are done")
                    self._finish.clear()
                for event in self._server.poll(0.2):
                    match event:
                        case LeaseOpened(lease):
                            self.opened.append(lease)
                        case LeaseClosed(lease, reason, _):
                            self.closed.append((lease, reason))
                        case FaultReported(_, text, kind):
                            self.faults.append(text)
                            self.kinds.append(kind)
                        case GroupRang(lease, group):
                            self._answer(lease, group)
        finally:
            self._server.close()
            self._slab.close()

    def _answer(self, lease: Lease, group: int) -> None:
        start = group * self._slab.layout.envs
        index = (lease.block, slice(start, start + lease.envs))
        fields = self._slab.fields
        self.rings[lease.id] += 1
        if len(self.rows) < 10_000:
            self.rows.append((lease.id, group, {name: array[index].copy() for name, array in fields.items()}))
        if self.answering.is_set():
            fields["action"][index] = 0
            self._server.reply(lease.id, group)


class ActorProcess(RoleProcess):
    """An actor, and everything it has said so far."""

    def __init__(self, start: dict[str, Any], log_path: Path) -> None:
        super().__init__("seedflow.actor", start, log_path)
        self.messages: list[dict[str, Any]] = []

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        self.messages += self.poll_messages()
        return [message for message in self.messages if message["kind"] == kind]

    def wait_state(self, state: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            ended = self.returncode() is not None
            for message in self.of_kind("state"):
                if message["state"] == state:
                    return message
            assert not ended, self.log_tail()
            return None

        found: dict[str, Any] = wait_for(find)
        return found

    def wait_exit(self) -> int:
        def ended() -> bool:
            self.messages += self.poll_messages()
            return self.returncode() is not None

        wait_for(ended)
        self.messages += self.poll_messages()
        code = self.returncode()
        assert code is not None
        return code


@pytest.fixture
def learner() -> Iterator[Callable[..., FixedActionLearner]]:
    """Start learners that are closed at the test's end."""
    with contextlib.ExitStack() as stack:

        def start(config: Config, spec: EnvSpec | None = None, **more: Any) -> FixedActionLearner:
            return stack.enter_context(
                contextlib.closing(FixedActionLearner(config, spec or spec_of(config), **more))
            )

        yield start


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Callable[..., ActorProcess]]:
    """Start actor processes that are killed at the test's end, if they still run."""
    with contextlib.ExitStack() as stack:

        def start(
            config: Config,
            endpoint: dict[str, Any],
            /,
            *,
            env_fn: Callable[[], Any] | bytes | None = None,
            spec: EnvSpec | None = None,
            **more: Any,
        ) -> ActorProcess:
            pickled = cloudpickle.dumps(env_fn) if callable(env_fn) else env_fn
            message = {
                "config": config.model_dump(mode="json"),
                "spec": (spec or spec_of(config)).to_json(),
                "token": TOKEN,
                "run_dir": str(tmp_path),
                "role": "train",
                "index": 0,
                "generation": 0,
                "endpoint": endpoint,
                "env_fn": None if pickled is None else base64.b64encode(pickled).decode(),
                **more,
            }
            log = tmp_path / f"actor-{message['index']}-{message['generation']}.log"
            return stack.enter_context(ActorProcess(message, log))

        yield start

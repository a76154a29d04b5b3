"""A learner without a network: it answers each row with a function of its observation."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from seedflow.config.tree import RpcConfig
from seedflow.rpc.client import connect
from seedflow.rpc.connection import Connection, Endpoint
from seedflow.rpc.control import ControlServer
from seedflow.rpc.leases import LeaseTable, Registration
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.transport import Event, GroupRang
from seedflow.specs import ArraySpec, EnvSpec

TIMEOUT = 30.0
TOKEN = "5eed" * 16
SPEC = EnvSpec(
    (
        ArraySpec("observation/image", (5, 3), np.dtype(np.uint8)),
        ArraySpec("observation/speed", (), np.dtype(np.float64)),
    ),
    num_actions=7,
)
EventT = TypeVar("EventT")
Rows = dict[str, np.ndarray[Any, Any]]


def expected_actions(rows: Rows, num_actions: int) -> np.ndarray[Any, Any]:
    """The action of each row: the sum over its observation, modulo the number of actions."""
    leaves = [array for name, array in rows.items() if name.startswith("observation")]
    sums = sum(leaf.reshape(len(leaf), -1).astype(np.int64).sum(axis=1) for leaf in leaves)
    return np.asarray(sums % num_actions)


def registration(index: int = 0, generation: int = 0, **changes: Any) -> Registration:
    fields = {
        "role": "train",
        "index": index,
        "generation": generation,
        "fingerprint": SPEC.fingerprint,
        "groups": 2,
        "envs": 4,
    }
    return Registration(**{**fields, **changes})


class EchoLearner:
    """A `ControlServer` and the thread that drives it, alone, until the learner is left.

    Parameters
    ----------
    answering
        Whether groups that ring are answered; may be changed at any time.
    actors, evaluators, spare, lease_seconds
        As of `LeaseTable`.

    Attributes
    ----------
    events
        All events but the rings, in order.
    rings
        Groups that rang, answered or not, in order.
    """

    def __init__(
        self,
        spec: EnvSpec = SPEC,
        groups: int = 2,
        envs: int = 4,
        *,
        actors: int = 3,
        evaluators: int = 1,
        spare: int = 2,
        lease_seconds: float = 60.0,
        answering: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.layout = BlockLayout(spec, groups, envs)
        table = LeaseTable(actors, evaluators, spare, groups, envs, spec.fingerprint, lease_seconds)
        self.slab = Slab(self.layout, table.blocks)
        self.server = ControlServer(self.layout, self.slab, table, TOKEN, clock=clock)
        self.answering = answering
        self.events: list[Event] = []
        self.rings: list[GroupRang] = []
        self._failure: BaseException | None = None
        self._calls: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self.stopping = False
        self._thread = threading.Thread(target=self._run, name="echo-learner")

    @property
    def socket(self) -> str:
        return str(self.server.path)

    def connect(
        self, registered: Registration | None = None, token: str = TOKEN, heartbeat_seconds: float = 5.0
    ) -> Connection:
        rpc = RpcConfig(path="slab", connect_seconds=TIMEOUT)
        return connect(
            Endpoint(socket=self.socket),
            token,
            registered or registration(),
            self.layout,
            rpc,
            heartbeat_seconds,
        )

    def call(self, function: Callable[[], object]) -> None:
        """Run a function in the learner's thread and wait until it has run."""
        ran: list[object] = []
        self._calls.append(lambda: ran.append(function()))
        self.server.wake()
        self.until(lambda: ran)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on what the learner has seen holds."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._failure or condition(), TIMEOUT)
        if self._failure is not None:
            raise self._failure

    def event(self, kind: type[EventT], number: int = 0) -> EventT:
        """Wait for an event of this kind, by default the first."""

        def found() -> list[EventT]:
            return [event for event in self.events if isinstance(event, kind)]

        self.until(lambda: len(found()) > number)
        return found()[number]

    def __enter__(self) -> EchoLearner:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping = True
        self.server.wake()
        self._thread.join(TIMEOUT)
        self.server.close()
        self.slab.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self.stopping:
                events = self.server.poll(1.0)
                for event in events:
                    if isinstance(event, GroupRang) and self.answering:
                        self.answer(event)
                while self._calls:
                    self._calls.popleft()()
                with self._changed:
                    for event in events:
                        (self.rings if isinstance(event, GroupRang) else self.events).append(event)
                    self._changed.notify_all()
        except BaseException as error:
            self._failure = error
            with self._changed:
                self._changed.notify_all()

    def answer(self, rang: GroupRang) -> None:
        """Write a group's actions and reply."""
        lease, start = rang.lease, rang.group * self.layout.envs
        index = (lease.block, slice(start, start + lease.envs))
        rows = {name: array[index] for name, array in self.slab.fields.items()}
        rows["action"][:] = expected_actions(rows, self.layout.spec.num_actions)
        self.server.reply(lease.id, rang.group)

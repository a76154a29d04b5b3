"""A connection of an actor to its learner: write rows, ring, wait for actions.

`seedflow.rpc.client.connect` makes one; both paths behave alike. Through shared memory
(`SlabConnection`) the rows are the learner's own; over gRPC (`GrpcConnection`) they are a private copy
that travels to the gateway and back.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from seedflow.errors import TransportError
from seedflow.rpc.leases import Lease
from seedflow.rpc.messages import ExitCode, FaultKind
from seedflow.rpc.slab import Block

log = logging.getLogger(__name__)


class Exit(Exception):
    """The learner told this actor to end. Not a failure.

    Attributes
    ----------
    reason : str
        What the learner said.
    code : str
        ``finished`` (the run has ended) or ``superseded`` (a newer incarnation has taken over).
    """

    def __init__(self, reason: str, code: ExitCode) -> None:
        super().__init__(reason)
        self.reason, self.code = reason, code


@dataclass(frozen=True)
class Endpoint:
    """Where a learner is reached.

    Attributes
    ----------
    socket
        Path of the control socket on the learner's host, or None.
    gateway
        ``host:port`` of the gRPC gateway, or None.
    name
        The name in the gateway's certificate; None where it does not use TLS.
    """

    socket: str | None = None
    gateway: str | None = None
    name: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"socket": self.socket, "gateway": self.gateway, "name": self.name}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Endpoint:
        for name in ("socket", "gateway", "name"):
            if not isinstance(value.get(name), str | None):
                raise TransportError(f"endpoint's {name} = {value[name]!r}: expected text or null")
        return cls(value.get("socket"), value.get("gateway"), value.get("name"))


class Connection(ABC):
    """A registered actor's connection. All methods but the heartbeat's are called by one thread.

    A group has at most one request in flight: between `ring(g)` and the `wait` that returns g its rows
    belong to the learner.

    Attributes
    ----------
    lease : Lease
        What the learner granted.
    block : Block
        The memory in which the rows lie.
    encrypted : bool
        Whether what travels is encrypted.
    """

    lease: Lease
    block: Block
    encrypted: bool = False

    @property
    def lease_id(self) -> int:
        """Number of the lease, unique within the run of the learner."""
        return self.lease.id

    @property
    def env_ids(self) -> range:
        """Ids of the leased environments; group g has ``env_ids[g*E : (g+1)*E]``."""
        return self.lease.env_ids

    def rows(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Views of a group's rows, ``[lease.envs, ...]`` for every field, action included."""
        rows = self.block.rows(group)
        if self.lease.envs == self.block.layout.envs:
            return rows
        return {name: array[: self.lease.envs] for name, array in rows.items()}

    @abstractmethod
    def ring(self, group: int) -> None:
        """Hand a group's rows to the learner. Does not wait for the answer.

        Raises
        ------
        ConnectionLost, Exit
            As `wait`.
        """

    @abstractmethod
    def wait(self, timeout: float) -> int | None:
        """Wait for actions.

        Parameters
        ----------
        timeout
            Seconds; 0 only looks.

        Returns
        -------
        int or None
            A group whose actions are in its rows, or None when the time is over.

        Raises
        ------
        ConnectionLost
            If the learner is gone or has dropped this lease; register again.
        Exit
            If the learner told this actor to end.
        """

    @abstractmethod
    def report_fault(self, text: str, kind: FaultKind = "raised") -> None:
        """Tell the learner why this actor is about to end, or why the one before it did.

        Best effort, waits no longer than a second. May be called by another thread while the one that
        owns the connection is in an environment.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection and its heartbeat; let go of the block. May be called twice."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class HeartbeatThread:
    """Calls `send` every `seconds` until stopped, or until `send` returns False (connection gone).

    The thread that steps environments cannot do this: one reset may take longer than a lease lives.
    """

    def __init__(self, send: Callable[[], bool], seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seedflow-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and wait for it."""
        self._stopping.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the heartbeat thread did not end within %s s", timeout)

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            if not self._send():
                return

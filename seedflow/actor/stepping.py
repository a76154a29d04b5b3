"""Double buffering: while one group waits for its actions, another one steps.

Examples
--------
>>> from seedflow.config import EnvConfig, RpcConfig
>>> from seedflow.envs import env_seed, make_group
>>> env = EnvConfig(id="seedflow/Synthetic-v0")
>>> groups = [make_group(env, 4, [env_seed(1, "actor", 4 * g + i, 0) for i in range(4)]) for g in range(2)]
>>> with ActorLoop(connection, groups) as loop:  # doctest: +SKIP
...     while not stop_requested.is_set():
...         loop.step(timeout=1.0)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seedflow.actor.activity import SIZE, Activity
from seedflow.envs.base import GroupEnv, OpenEpisode
from seedflow.errors import SpecError
from seedflow.rpc.connection import Connection

log = logging.getLogger(__name__)


@dataclass
class StepCounts:
    """What an actor has done, for its metrics.

    Attributes
    ----------
    agent_steps
        Transitions made; reset rows are none.
    env_frames
        Frames that they took, as the environments counted them.
    env_seconds, wait_seconds
        Time within environments, and time in which every group waited for actions.
    """

    agent_steps: int = 0
    env_frames: int = 0
    env_seconds: float = 0.0
    wait_seconds: float = 0.0


class GroupFault(Exception):
    """A group of environments raised; the cause is what it raised.

    Not reported to users as such: it separates what environments raise, which may be anything, from what
    the connection raises.
    """

    def __init__(self, group: int, env_ids: range, action: str) -> None:
        super().__init__(f"{action} of group {group} (environments {env_ids.start} to {env_ids.stop - 1})")
        self.group, self.env_ids = group, env_ids


class ActorLoop:
    """Steps G groups of environments over one connection.

    Invariant: a group's rows are written only while it has no request in flight. Every group begins with a
    reset, so the first row of each environment has ``first`` set.

    Parameters
    ----------
    connection
        A registered connection; the loop closes neither it nor its block.
    groups
        One per group of the lease, in order. The loop owns and closes them.
    counts
        Goes on counting here, so that it may outlive a connection.
    activity
        Where to say which call of an environment is being made.
    """

    def __init__(
        self,
        connection: Connection,
        groups: Sequence[GroupEnv],
        counts: StepCounts | None = None,
        activity: Activity | None = None,
    ) -> None:
        self._connection = connection
        self._groups = list(groups)
        self._rows: list[dict[str, NDArray[Any]]] = [connection.rows(g) for g in range(len(groups))]
        for env, rows in zip(self._groups, self._rows, strict=True):
            if len(rows["action"]) != env.num_envs:
                raise SpecError(
                    f"a group of {env.num_envs} environments does not fit a lease with {len(rows['action'])} "
                    "rows per group: register with the number of environments that are stepped"
                )
        self._to_reset = deque(range(len(groups)))
        self.counts = counts if counts is not None else StepCounts()
        self._activity = activity if activity is not None else Activity(bytearray(SIZE))

    @property
    def begun(self) -> bool:
        """Whether every group has been reset."""
        return not self._to_reset

    def open_episodes(self) -> list[list[OpenEpisode]]:
        """The episodes that are under way, by group."""
        return [group.open_episodes() for group in self._groups]

    def go_on_from(self, episodes: Sequence[Sequence[OpenEpisode]]) -> None:
        """Bring every environment to where an earlier process had it; nothing is reset, no row is written.

        Raises
        ------
        GroupFault
            From what an environment raised.
        """
        for number, (group, own) in enumerate(zip(self._groups, episodes, strict=True)):
            try:
                group.reopen(own)
            except BaseException as error:
                raise GroupFault(number, self._env_ids(number), "reopening") from error
        self._to_reset.clear()

    def step(self, timeout: float) -> int | None:
        """Do one thing: reset a group, or wait for any group's actions and step that group.

        Parameters
        ----------
        timeout
            Seconds to wait for actions; 0 only looks.

        Returns
        -------
        int or None
            The group that was stepped or reset and has been rung, or None when no actions came.

        Raises
        ------
        GroupFault
            From what an environment raised.
        ConnectionLost, Exit
            As of `Connection.wait`.
        """
        begin = time.perf_counter()
        if self._to_reset:
            group = self._to_reset[0]
            self._reset(group)
            self._to_reset.popleft()
            stepped = time.perf_counter()
        else:
            ready = self._connection.wait(timeout)
            waited = time.perf_counter()
            self.counts.wait_seconds += waited - begin
            if ready is None:
                return None
            group, begin = ready, waited
            self._step(group)
            stepped = time.perf_counter()
        self.counts.env_seconds += stepped - begin
        self._connection.ring(group)
        return group

    def close(self) -> None:
        """Close all groups; what they raise is logged, since there is nobody left to act on it."""
        while self._groups:
            number, group = len(self._groups) - 1, self._groups[-1]
            self._activity.begin("close", number, self._env_ids(number))
            self._groups.pop()
            try:
                group.close()
            except Exception:
                log.exception("closing an environment group failed")
            self._activity.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reset(self, group: int) -> None:
        self._activity.begin("reset", group, self._env_ids(group))
        try:
            self._groups[group].reset(self._rows[group])
        except BaseException as error:  # an environment may raise SystemExit, say
            raise GroupFault(group, self._env_ids(group), "reset") from error
        finally:
            self._activity.end()

    def _step(self, group: int) -> None:
        rows = self._rows[group]
        self._activity.begin("step", group, self._env_ids(group))
        try:
            self._groups[group].step(rows["action"], rows)
        except BaseException as error:
            raise GroupFault(group, self._env_ids(group), "step") from error
        finally:
            self._activity.end()
        self.counts.agent_steps += len(rows["first"]) - int(np.count_nonzero(rows["first"]))
        self.counts.env_frames += int(rows["frames"].sum())

    def _env_ids(self, group: int) -> range:
        envs = self._groups[group].num_envs
        return self._connection.env_ids[group * envs : (group + 1) * envs]

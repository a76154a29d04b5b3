"""Double buffering over a connection whose learner is the test."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from seedflow.actor.stepping import ActorLoop, GroupFault
from seedflow.config import EnvConfig
from seedflow.envs import GroupEnv, env_seed, make_group
from seedflow.envs.synthetic import counting_observation, counting_reward
from seedflow.errors import ConnectionLost, SpecError
from seedflow.rpc.connection import Connection, Exit
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import Lease, LeaseTable, Registration
from seedflow.rpc.slab import Block, BlockLayout, Slab
from seedflow.rpc.transport import GroupRang

G, E = 2, 3
COUNTING = EnvConfig(
    id="seedflow/Synthetic-v0",
    kwargs={"observation_shape": [2], "content": "counting", "episode_length": 3, "frames_per_step": 4},
)


class ScriptedConnection(Connection):
    """Keeps the order of rings; `answer` plays the learner."""

    def __init__(self, layout: BlockLayout) -> None:
        self.lease = Lease(7, 0, "train", 1, 0, range(6, 12), layout.groups, layout.envs)
        self.block = Block.private(layout)
        self.rung: list[int] = []
        self.ready: deque[int] = deque()
        self.problem: Exception | None = None

    def ring(self, group: int) -> None:
        self.rung.append(group)

    def answer(self, group: int, action: int) -> None:
        self.rung.remove(group)
        self.rows(group)["action"][:] = action
        self.ready.append(group)

    def wait(self, timeout: float) -> int | None:
        if self.problem is not None:
            raise self.problem
        return self.ready.popleft() if self.ready else None

    def report_fault(self, text: str) -> None:
        raise AssertionError("the loop leaves this to the session")

    def close(self) -> None:
        self.block.close()


def make_groups(env: EnvConfig = COUNTING) -> list[GroupEnv]:
    return [make_group(env, E, [env_seed(1, "actor", 6 + g * E + i, 0) for i in range(E)]) for g in range(G)]


def make_loop(groups: list[GroupEnv]) -> tuple[ActorLoop, ScriptedConnection]:
    connection = ScriptedConnection(BlockLayout(groups[0].spec, G, E))
    return ActorLoop(connection, groups), connection


def test_every_group_begins_with_a_reset_and_is_rung() -> None:
    loop, connection = make_loop(make_groups())
    assert [loop.step(0), loop.step(0)] == [0, 1]
    assert connection.rung == [0, 1]
    for g in range(G):
        rows = connection.rows(g)
        assert rows["first"].all()
        assert not rows["reward"].any()
        for i in range(E):
            leaf = make_groups()[0].spec.observation[0]
            np.testing.assert_array_equal(
                rows["observation"][i], counting_observation(6 + g * E + i, 0, leaf)
            )
    assert loop.counts.agent_steps == 0


def test_the_group_whose_actions_arrive_is_stepped_while_the_other_waits() -> None:
    loop, connection = make_loop(make_groups())
    loop.step(0), loop.step(0)
    connection.answer(1, action=5)
    assert loop.step(0) == 1
    assert connection.rung == [0, 1]
    assert connection.rows(0)["first"].all()
    assert not connection.rows(1)["first"].any()
    np.testing.assert_array_equal(
        connection.rows(1)["reward"], [counting_reward(env_id, 1) for env_id in (9, 10, 11)]
    )
    assert loop.step(0) is None
    assert (loop.counts.agent_steps, loop.counts.env_frames) == (E, 4 * E)


def test_episodes_of_three_steps_are_written_in_full() -> None:
    loop, connection = make_loop(make_groups())
    first, terminated = [], []
    for _ in range(9):
        while loop.step(0) is not None:
            pass
        first.append(bool(connection.rows(0)["first"].all()))
        terminated.append(bool(connection.rows(0)["terminated"].all()))
        connection.answer(0, action=0)
        connection.answer(1, action=0)
    assert first == [True, False, False, False] * 2 + [True]
    assert terminated == [False, False, False, True] * 2 + [False]
    assert loop.counts.agent_steps == 6 * G * E


class Raising(GroupEnv):
    """Raises at a chosen step."""

    def __init__(self, inner: GroupEnv, step: int, error: BaseException) -> None:
        self.inner, self.left, self.error = inner, step, error
        self.spec, self.num_envs = inner.spec, inner.num_envs
        self.closed = 0

    def reset(self, rows: Any) -> None:
        self.step(np.zeros(0, np.int64), rows)

    def step(self, actions: Any, rows: Any) -> None:
        if self.left == 0:
            raise self.error
        self.left -= 1
        self.inner.reset(rows)

    def close(self) -> None:
        self.closed += 1
        raise RuntimeError("close fails as well")


@pytest.mark.parametrize(("step", "what"), [(0, "reset"), (1, "step")])
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(0)])
def test_whatever_an_environment_raises_names_group_and_environments(
    step: int, what: str, error: BaseException
) -> None:
    groups = make_groups()
    groups[1] = Raising(groups[1], step, error)
    loop, connection = make_loop(groups)
    assert loop.step(0) == 0
    if what == "step":
        assert loop.step(0) == 1
        connection.answer(1, action=0)
    with pytest.raises(GroupFault, match=rf"{what} of group 1 \(environments 9 to 11\)") as caught:
        loop.step(0)
    assert caught.value.__cause__ is error
    assert connection.rung == [0]


def test_all_groups_are_closed_once_even_where_closing_fails(caplog: pytest.LogCaptureFixture) -> None:
    groups = [Raising(group, 1, ValueError()) for group in make_groups()]
    loop, _ = make_loop(list(groups))
    with loop:
        loop.step(0)
    loop.close()
    assert [group.closed for group in groups] == [1, 1]
    assert caplog.text.count("RuntimeError: close fails as well") == 2


@pytest.mark.parametrize("problem", [ConnectionLost("gone"), Exit("the run has ended", "finished")])
def test_what_the_connection_raises_comes_through(problem: Exception) -> None:
    loop, connection = make_loop(make_groups())
    loop.step(0), loop.step(0)
    connection.problem = problem
    with pytest.raises(type(problem)):
        loop.step(0)


def test_groups_that_do_not_fit_the_lease_are_refused() -> None:
    groups = make_groups()
    connection = ScriptedConnection(BlockLayout(groups[0].spec, G, E + 1))
    with pytest.raises(SpecError, match="a group of 3 environments does not fit a lease with 4 rows"):
        ActorLoop(connection, groups)


def test_loop_runs_unchanged_within_the_learners_own_process() -> None:
    groups = make_groups()
    spec = groups[0].spec
    layout = BlockLayout(spec, G, E)
    table = LeaseTable(2, 0, 1, G, E, spec.fingerprint, 30.0)
    with Slab(layout, table.blocks) as slab:
        transport = InlineTransport(layout, slab, table)
        connection = transport.connect(Registration("train", 1, 0, spec.fingerprint, G, E))
        order = []
        with connection, ActorLoop(connection, groups) as loop:
            for _ in range(5):
                while (group := loop.step(0)) is not None:
                    order.append(group)
                for event in transport.poll(0):
                    if isinstance(event, GroupRang):
                        transport.reply(event.lease.id, event.group)
            assert order == [0, 1] * 5
            assert loop.counts.agent_steps == 3 * G * E
        transport.close()

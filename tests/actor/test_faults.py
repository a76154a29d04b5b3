"""Environments that raise, crash, hang or return nonsense, and actors that are stopped: who hears of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from seedflow.actor.activity import Activity
from seedflow.specs import EnvSpec
from tests.actor.conftest import ActorProcess, FixedActionLearner, make_config, wait_for

Learner = Callable[..., FixedActionLearner]
Actor = Callable[..., ActorProcess]

SPACE = gym.spaces.Box(-1, 1, (2,), np.float32)
SPEC = EnvSpec.from_spaces(SPACE, gym.spaces.Discrete(2))
PLACES = ["__init__", "reset", "step"]
SECOND_OF_FIRST_GROUP = 5
"""Environment that misbehaves: actor 1 has two groups of two, environments 4 to 7."""


def misbehaving(behaviour: str, place: str, seconds: float = 600.0) -> Callable[[], gym.Env[Any, Any]]:
    """Makes environments of which every second one misbehaves, in a class that travels by value."""

    class Misbehaving(gym.Env[Any, Any]):
        observation_space = SPACE
        action_space = gym.spaces.Discrete(2)
        made = 0
        steps = 0

        def __init__(self) -> None:
            self.number = Misbehaving.made
            Misbehaving.made += 1
            self.act("__init__")

        def act(self, here: str) -> None:
            import os
            import signal
            import time

            if here != place or self.number % 2 == 0:
                return
            if behaviour == "raise":
                raise ZeroDivisionError("the pole has no length")
            if behaviour == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if behaviour in ("hang", "slow"):
                time.sleep(seconds)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.act("reset")
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            if self.steps == 3:
                self.act("step")
                if behaviour == "nan" and self.number % 2:
                    return np.full(2, np.nan, np.float32), 1.0, False, False, {}
            return np.zeros(2, np.float32), 1.0, False, False, {}

    return Misbehaving


def actor_settings(**more: Any) -> dict[str, Any]:
    return {"groups": 2, "envs_per_group": 2, "reconnect_seconds": 30, "heartbeat_seconds": 0.5, **more}


@pytest.mark.parametrize("place", PLACES)
def test_what_an_environment_raises_reaches_the_learner_with_environment_and_actor(
    place: str, learner: Learner, actor: Actor
) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=misbehaving("raise", place), spec=SPEC, index=1)
    assert process.wait_exit() == (3 if place == "__init__" else 1)
    wait_for(lambda: served.faults)
    assert served.kinds == ["raised"]
    (text,) = served.faults
    for part in ("ZeroDivisionError: the pole has no length", "train actor 1", "in act"):
        assert part in text
    assert f"in {place} of environment {SECOND_OF_FIRST_GROUP}" in text
    wait_for(lambda: served.closed)


@pytest.mark.parametrize("place", PLACES)
def test_a_crash_leaves_the_call_and_the_environment_to_the_supervisor(
    place: str, learner: Learner, actor: Actor
) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=misbehaving("crash", place), spec=SPEC, index=1)
    assert process.wait_exit() == 128 + signal.SIGSEGV
    doing = Activity(process.board()).describe()
    assert doing == f"{place} of group 0 (environments 4 to 5), environment {SECOND_OF_FIRST_GROUP}"
    assert "Fatal Python error: Segmentation fault" in process.log_tail(200)
    wait_for(lambda: served.closed)


def test_a_replacement_tells_the_learner_how_its_predecessor_ended(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config)
    before = {"text": "generation 0: actor-0 was killed by SIGSEGV in step of group 0", "kind": "crashed"}
    process = actor(config, served.endpoint, generation=1, before=before)
    wait_for(lambda: served.faults)
    assert (served.faults, served.kinds) == ([before["text"]], ["crashed"])
    wait_for(lambda: len(served.rows) > 4)  # and steps on
    assert process.returncode() is None


@pytest.mark.parametrize("place", PLACES)
def test_a_hang_is_noticed_reported_with_its_stack_and_ends_the_actor(
    place: str, learner: Learner, actor: Actor
) -> None:
    config = make_config(actor=actor_settings(env_timeout_seconds=0.5))
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=misbehaving("hang", place), spec=SPEC, index=1)
    assert process.wait_exit() == 1
    (failed,) = process.of_kind("failed")
    assert (failed["exception"], failed["retryable"]) == ("EnvironmentFault", True)
    assert failed["identity"] == f"{place} has not returned"
    wait_for(lambda: served.faults)
    assert served.kinds == ["hung"]
    for text in (failed["traceback"], served.faults[0]):
        assert f"environment {SECOND_OF_FIRST_GROUP} has not returned for 0.5 s" in text
        assert "in act" in text
        assert "train actor 1" in text
    wait_for(lambda: served.closed)


@pytest.mark.parametrize("place", ["__init__", "reset"])
def test_what_is_slow_but_returns_in_time_loses_nothing(place: str, learner: Learner, actor: Actor) -> None:
    """Far longer than a lease lives, and heartbeats keep it."""
    config = make_config(actor=actor_settings(env_timeout_seconds=60.0, heartbeat_seconds=0.1))
    served = learner(config, SPEC, lease_seconds=1.0)
    slow = misbehaving("slow", place, seconds=3.0)
    process = actor(config, served.endpoint, env_fn=slow, spec=SPEC, index=1)
    wait_for(lambda: len(served.rows) > 8)
    assert len(served.opened) == 1
    assert not served.closed
    assert not served.faults
    assert process.stop(30) == 0


def test_a_number_that_is_none_reaches_the_learner_with_environment_step_and_array(
    learner: Learner, actor: Actor
) -> None:
    config = make_config()
    served = learner(config, SPEC)
    process = actor(config, served.endpoint, env_fn=misbehaving("nan", "step"), spec=SPEC, index=1)
    assert process.wait_exit() == 1
    (failed,) = process.of_kind("failed")
    assert failed["exception"] == "EnvironmentFault"
    assert failed["identity"] == "observation of env_fn is not finite"
    wait_for(lambda: served.faults)
    assert f"observation of environment {SECOND_OF_FIRST_GROUP} is nan at step 3" in served.faults[0]
    assert not any(np.isnan(rows["observation"]).any() for _, _, rows in served.rows)


def test_masked_numbers_arrive_as_zero_with_their_count(learner: Learner, actor: Actor) -> None:
    config = make_config(env={"on_nonfinite": "mask"})
    served = learner(config, SPEC)
    actor(config, served.endpoint, env_fn=misbehaving("nan", "step"), spec=SPEC, index=1)
    wait_for(lambda: len(served.rows) > 20)
    assert not any(np.isnan(rows["observation"]).any() for _, _, rows in served.rows)
    masked = [rows["masked"].tolist() for _, group, rows in served.rows if group == 0]
    assert masked[:5] == [[0, 0], [0, 0], [0, 0], [0, 2], [0, 0]]


def test_a_stopped_actor_is_replaced_at_once_and_told_when_it_goes_on(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config)
    stopped = actor(config, served.endpoint)
    bystander = actor(config, served.endpoint, index=1)
    wait_for(lambda: len(served.opened) == 2 and len(served.rows) > 8)
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        replacement = actor(config, served.endpoint, generation=1)
        wait_for(lambda: len(served.opened) == 3)
        lease = served.opened[2]
        assert (lease.index, lease.generation) == (0, 1)
        wait_for(lambda: served.rings[lease.id] > 8)
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.wait_exit() == 0
    assert stopped.of_kind("done") == [{"kind": "done", "reason": "superseded"}]
    assert replacement.returncode() is None
    assert bystander.returncode() is None
    assert [closed.index for closed, _ in served.closed] == [0]


def test_an_actor_that_was_stopped_past_its_lease_comes_back_with_new_episodes(
    learner: Learner, actor: Actor
) -> None:
    config = make_config(actor=actor_settings(heartbeat_seconds=0.1))
    served = learner(config, lease_seconds=1.0)
    process = actor(config, served.endpoint)
    wait_for(lambda: len(served.rows) > 4)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: served.closed)
        assert "nothing was heard from the actor for 1 s" in served.closed[0][1]
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: len(served.opened) == 2)
    again = served.opened[1]
    wait_for(lambda: sum(n == again.id for n, _, _ in served.rows) > 4)
    for group in range(2):
        first = next(rows for n, g, rows in served.rows if (n, g) == (again.id, group))
        assert first["first"].all()
    assert "was dropped by its learner" in process.log_tail() or "lost its learner" in process.log_tail()


def test_a_slow_actor_holds_up_no_other(learner: Learner, actor: Actor) -> None:
    config = make_config()
    served = learner(config, SPEC)
    slow = misbehaving("slow", "step", seconds=5.0)
    actor(config, served.endpoint, env_fn=slow, spec=SPEC, index=1)
    wait_for(lambda: len(served.rows) > 5)
    before = sum(lease.index == 1 for lease in served.opened)
    assert before == 1
    actor(config, served.endpoint, env_fn=misbehaving("well", ""), spec=SPEC, index=0)
    quick = wait_for(lambda: [lease for lease in served.opened if lease.index == 0])[0]
    wait_for(lambda: sum(n == quick.id for n, _, _ in served.rows) > 500)
    assert not served.closed


def test_the_log_of_an_actor_is_its_owners_alone(learner: Learner, actor: Actor, tmp_path: Path) -> None:
    config = make_config()
    actor(config, learner(config).endpoint).wait_state("running")
    (log,) = tmp_path.glob("*.log")
    assert log.stat().st_mode & 0o777 == 0o600

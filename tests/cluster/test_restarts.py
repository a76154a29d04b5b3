"""When a role that failed is started again."""

from __future__ import annotations

from seedflow.cluster.launch import RoleId
from seedflow.cluster.restarts import LONGEST_DELAY, RestartPolicy, exception_text
from seedflow.errors import EnvironmentFault
from seedflow.roles import failure

ONE, TWO = RoleId("actor", 1), RoleId("actor", 2)


def test_delays_double_for_each_role_and_have_an_end() -> None:
    policy = RestartPolicy(limit=100, window=600)
    assert [policy.failed(ONE, None, now) for now in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, LONGEST_DELAY]
    assert policy.failed(TWO, None, 8) == 0.5


def test_failures_older_than_the_window_are_forgotten() -> None:
    policy = RestartPolicy(limit=1, window=60)
    assert policy.failed(ONE, "ValueError: x", 0.0) == 0.5
    assert policy.failed(ONE, "ValueError: x", 60.0) == 0.5
    assert (
        policy.failed(ONE, None, 61.0) == "2 failures of actors within 60 s, more than actor.max_restarts = 1"
    )


def test_no_restart_at_all_where_none_is_allowed() -> None:
    verdict = RestartPolicy(limit=0, window=60).failed(ONE, None, 0.0)
    assert verdict == "1 failures of actors within 60 s, more than actor.max_restarts = 0"


def test_the_same_exception_of_one_role_is_given_up_and_of_another_is_not() -> None:
    policy = RestartPolicy(limit=10, window=60)
    assert policy.failed(ONE, "ValueError: x", 0.0) == 0.5
    assert policy.failed(TWO, "ValueError: x", 1.0) == 0.5
    assert policy.failed(ONE, "ValueError: y", 2.0) == 1.0
    assert (
        policy.failed(ONE, "ValueError: x", 3.0) == "actor-1 failed with the same exception twice within 60 s"
    )


def test_a_fault_that_names_its_place_is_known_by_what_it_has_in_common() -> None:
    first, second = (
        failure(EnvironmentFault(f"reward of environment 3 is nan at step {t}", "reward is not finite"), True)
        for t in (17, 1234)
    )
    assert exception_text(first) == exception_text(second) == "EnvironmentFault: reward is not finite"
    assert "step 1234" in second["message"]


def test_what_identifies_an_exception() -> None:
    assert exception_text(None) is None
    assert exception_text({"exception": "ValueError", "message": "x"}) == "ValueError: x"
    assert exception_text({"exception": "ValueError", "traceback": "a\nValueError: x\n"}) == (
        "ValueError: ValueError: x"
    )
    assert exception_text({"exception": "ConnectionLost", "message": "reset by peer"}) is None

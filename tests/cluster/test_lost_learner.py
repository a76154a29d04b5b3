"""A learner that is lost is placed again, as the state machine of a run's roles decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rosters import ACTOR, CONFIG, LEARNER, OTHER, WORKERS, crashed, endpoint, note, running, started, state

from seedflow.cluster.launch import RoleResult
from seedflow.cluster.placement import Place, WorkerInfo
from seedflow.cluster.replacement import place_again
from seedflow.cluster.roster import CROWDING_SECONDS, Announce, Cancel, Roster, Submit
from seedflow.errors import PlacementError, RunFailed

BOTH = frozenset({WORKERS[1].address, WORKERS[2].address})
NEW = WorkerInfo("tcp://10.0.0.9:4000", "10.0.0.9")
NO_LEARNER = RoleResult(
    "ended",
    1,
    failed={"exception": "ConnectionLost", "message": "found no learner", "retryable": True},
    host="node",
)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (RoleResult("ended", 137, log_tail="step 9"), "the learner was killed by SIGKILL"),
        (RoleResult("ended", 1), "the learner ended with exit code 1 and without an exception"),
        (
            RoleResult("ended", 134, hung="its training loop stood still for 300 s"),
            "the learner was killed, since its training loop stood still for 300 s",
        ),
        (RoleResult("stopped"), "the learner was stopped: somebody cancelled its task"),
        (RoleResult("ended", 0, "stopped"), "the learner ended by itself (stopped)"),
    ],
)
def test_a_lost_learner_starts_again_and_its_actors_are_told_where(result: RoleResult, words: str) -> None:
    roster = running()
    roster.ended(LEARNER, 0, result, 10.0)
    cancel, submit = roster.advance(10.0)
    assert cancel == Cancel(LEARNER, 0)
    assert isinstance(submit, Submit)
    assert (submit.role, submit.generation, submit.place.worker) == (LEARNER, 1, WORKERS[0].address)
    assert roster.notices == [f"{words}; starting generation 1 from the newest checkpoint"]
    assert (roster.phase, roster.learner_restarts) == ("starting", 1)
    assert state(roster, ACTOR) == ("running", 0)

    roster.heard(note(ACTOR, 0, "message", kind="state", state="reconnecting"), 11.0)
    assert roster.advance(11.0) == []  # nobody knows where the learner will be
    roster.heard(started(LEARNER, 1, "b"), 12.0)
    roster.heard(replace(endpoint(1, "10.0.0.0:6"), attempt="b"), 12.0)
    assert roster.advance(12.0) == [Announce(BOTH)]
    assert roster.phase == "running"
    assert roster.endpoint == {"gateway": "10.0.0.0:6"}


def test_a_learner_on_a_worker_that_leaves_goes_elsewhere() -> None:
    roster = running()
    roster.see_workers([*WORKERS, NEW], 9.0)
    roster.ended(LEARNER, 0, RoleResult("left"), 10.0)
    _, submit = roster.advance(10.0)
    assert isinstance(submit, Submit)
    assert submit.place.worker == NEW.address
    assert roster.notices == [
        "the learner was stopped, since its worker tcp://10.0.0.0:4000 leaves the cluster; "
        "starting generation 1 from the newest checkpoint"
    ]


def test_an_actor_that_did_not_hear_where_the_learner_is_is_told_again() -> None:
    roster = running()
    roster.ended(LEARNER, 0, RoleResult("ended", 137), 10.0)
    roster.advance(10.0)
    roster.heard(started(LEARNER, 1, "b"), 12.0)
    roster.heard(replace(endpoint(1), attempt="b"), 12.0)
    roster.advance(12.0)
    roster.heard(note(ACTOR, 0, "message", kind="state", state="reconnecting"), 13.0)
    assert roster.advance(13.0) == [Announce(frozenset({WORKERS[1].address}))]
    roster.see_workers(WORKERS, 20.0)
    assert roster.advance(20.0) == [Announce(frozenset({WORKERS[1].address}))]
    roster.heard(note(ACTOR, 0, "message", kind="state", state="running"), 21.0)
    roster.see_workers(WORKERS, 30.0)
    assert roster.advance(30.0) == []


def test_an_actor_that_was_submitted_before_the_loss_is_told_once_it_has_begun() -> None:
    roster = running()
    roster.ended(ACTOR, 0, RoleResult("ended", 137), 9.0)
    roster.advance(9.0)
    (submit,) = roster.advance(9.5)
    assert isinstance(submit, Submit)
    roster.ended(LEARNER, 0, RoleResult("ended", 137), 10.0)
    roster.advance(10.0)
    roster.heard(started(LEARNER, 1, "b"), 12.0)
    roster.heard(replace(endpoint(1), attempt="b"), 12.0)
    assert roster.advance(12.0) == [Announce(frozenset({WORKERS[2].address}))]
    roster.heard(started(ACTOR, 1, "c"), 13.0)
    assert roster.advance(13.0) == [Announce(frozenset({submit.place.worker}))]


def test_a_learner_whose_worker_is_gone_waits_a_moment_for_one_without_actors() -> None:
    roster = running()
    roster.see_workers(WORKERS[1:], 10.0)
    assert roster.advance(10.0) == [Cancel(LEARNER, 0)]
    assert roster.next_time(10.0) == 10.0 + CROWDING_SECONDS
    roster.see_workers([*WORKERS[1:], NEW], 11.0)  # its nanny has started it again
    (submit,) = roster.advance(11.0)
    assert isinstance(submit, Submit)
    assert submit.place.worker == NEW.address


def test_if_there_is_none_it_goes_beside_an_actor() -> None:
    roster = running()
    roster.see_workers(WORKERS[1:], 10.0)
    roster.advance(10.0)
    (submit,) = roster.advance(10.0 + CROWDING_SECONDS)
    assert isinstance(submit, Submit)
    assert submit.place.worker in BOTH
    assert state(roster, ACTOR) == state(roster, OTHER) == ("running", 0)


def test_without_any_worker_in_time_the_run_ends() -> None:
    roster = running()
    roster.see_workers([], 10.0)
    roster.advance(10.0)
    assert roster.notices[-1].startswith("waiting for workers: the learner was lost and there is no running")
    roster.advance(70.0)
    assert isinstance(roster.error(), PlacementError)
    assert "waited 60 s, cluster.worker_seconds" in str(roster.error())


def test_a_learner_that_held_a_gpu_waits_for_one() -> None:
    gpu = Place("tcp://10.0.0.1:1", "10.0.0.1", {"GPU": 1})
    with pytest.raises(PlacementError, match="no running worker that declares GPU=1, as the learner's did"):
        place_again(WORKERS, gpu, ())
    offer = WorkerInfo("tcp://10.0.0.7:1", "10.0.0.7", resources={"GPU": 1, "ACTOR": 2})
    again = place_again([*WORKERS, offer], gpu, {offer.address})
    assert again is not None
    assert (again.place, again.crowded, again.shared) == (
        Place(offer.address, offer.host, {"GPU": 1}),
        True,
        True,
    )


def test_what_a_restart_cannot_cure_ends_the_run() -> None:
    roster = running()
    roster.ended(LEARNER, 0, crashed(retryable=False), 10.0)
    assert roster.advance(10.0) == [Cancel(ACTOR, 0), Cancel(OTHER, 0)]
    assert "the learner failed with ValueError: boom" in str(roster.error())


def test_the_same_exception_twice_ends_the_run_with_its_traceback() -> None:
    roster = running()
    roster.ended(LEARNER, 0, crashed(), 10.0)
    assert roster.advance(10.0) == [Cancel(LEARNER, 0)]  # it starts again after a delay
    assert len(roster.advance(10.5)) == 1
    roster.ended(LEARNER, 1, crashed(), 12.0)
    error = roster.error()
    assert isinstance(error, RunFailed)
    assert "learner-0 failed with the same exception twice within 600 s" in str(error)
    assert "where" in str(error)


def test_a_learner_that_keeps_dying_ends_the_run() -> None:
    roster = running()
    for generation in range(CONFIG.learner.max_restarts + 1):
        now = 10.0 + generation
        roster.ended(LEARNER, generation, RoleResult("ended", 137), now)
        roster.advance(now)
        roster.heard(started(LEARNER, generation + 1, "b"), now)
    assert roster.phase == "stopping"
    assert "6 failures of the learner within 600 s, more than learner.max_restarts = 5" in str(roster.error())


def test_a_learner_that_fails_before_it_was_ever_up_is_not_tried_again() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.advance(0.0)
    roster.heard(started(LEARNER), 1.0)
    roster.ended(LEARNER, 0, crashed(), 2.0)
    assert roster.phase == "stopping"


def test_a_first_learner_that_is_lost_with_its_worker_is() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.advance(0.0)
    roster.see_workers([*WORKERS[1:], NEW], 1.0)
    cancel, submit = roster.advance(1.0)
    assert cancel == Cancel(LEARNER, 0)
    assert isinstance(submit, Submit)
    assert submit.generation == 1


def test_actors_that_look_in_vain_meanwhile_are_not_counted_as_failures() -> None:
    roster = running()
    roster.ended(LEARNER, 0, RoleResult("ended", 137), 10.0)
    roster.advance(10.0)
    for generation in range(10):
        roster.ended(ACTOR, generation, NO_LEARNER, 11.0)
        slot = state(roster, ACTOR)
        assert slot == ("waiting" if generation == 0 else slot[0], 1)
    assert roster.phase == "starting"
    roster.heard(started(LEARNER, 1, "b"), 12.0)
    roster.heard(replace(endpoint(1), attempt="b"), 12.0)
    assert [type(command) for command in roster.advance(12.0)] == [Cancel, Announce, Submit]

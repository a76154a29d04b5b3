"""The state machine of a run's roles, without a cluster."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from rosters import ACTOR, CONFIG, LEARNER, OTHER, WORKERS, crashed, endpoint, note, running, started, state

from seedflow.actor.start import Obituary
from seedflow.cluster.launch import Note, RoleResult
from seedflow.cluster.placement import WorkerInfo
from seedflow.cluster.roster import GATHERING_SECONDS, STOP_MARGIN, UNSTARTED_SECONDS, Cancel, Roster, Submit
from seedflow.errors import ConfigError, PlacementError, RunFailed


def test_actors_wait_for_the_learners_endpoint() -> None:
    roster = Roster(CONFIG, 0.0)
    assert roster.advance(0.0) == []
    roster.see_workers(WORKERS, 1.0)
    (submit,) = roster.advance(1.0)
    assert isinstance(submit, Submit)
    assert submit.role == LEARNER
    assert roster.phase == "starting"
    assert roster.advance(2.0) == []
    roster.heard(started(LEARNER), 3.0)
    roster.heard(endpoint(), 3.0)
    assert [command.role for command in roster.advance(3.0)] == [ACTOR, OTHER]
    assert roster.endpoint == {"gateway": "10.0.0.0:5"}


def test_without_enough_workers_in_time_nothing_is_submitted() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS[:2], 0.0)
    assert roster.advance(59.0) == []
    assert roster.next_time(59.0) == 60.0
    assert roster.advance(60.0) == []
    assert roster.phase == "ended"
    error = roster.error()
    assert isinstance(error, PlacementError)
    assert "actor.count = 2" in str(error)
    assert "waited 60 s, cluster.worker_seconds" in str(error)


def test_a_learner_whose_task_does_not_begin_is_told_from_one_that_is_slow() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.advance(0.0)
    assert roster.advance(120.0) == [Cancel(LEARNER, 0)]
    assert roster.next_time(120.0) == 120.0 + UNSTARTED_SECONDS
    roster.advance(120.0 + UNSTARTED_SECONDS)
    assert roster.phase == "ended"
    assert "the learner's task has not begun on worker tcp://10.0.0.0:4000 within 120 s" in str(
        roster.error()
    )


def test_a_failed_actor_starts_again_after_a_delay_with_the_next_generation() -> None:
    roster = running()
    roster.ended(ACTOR, 0, crashed(), 10.0)
    assert roster.advance(10.0) == [Cancel(ACTOR, 0)]
    assert state(roster, ACTOR) == ("waiting", 1)
    assert roster.next_time(10.0) == 10.5
    (submit,) = roster.advance(10.5)
    assert isinstance(submit, Submit)
    assert (submit.role, submit.generation) == (ACTOR, 1)
    assert roster.restarts == 1
    assert roster.notices == ["actor-0 failed with ValueError: boom; starting generation 1 in 0.5 s"]


KILLED = RoleResult("ended", 139, host="node", doing="step of group 0 (environments 0 to 1), environment 1")


def test_the_replacement_of_an_actor_that_was_killed_is_told_how() -> None:
    roster = running()
    roster.ended(ACTOR, 0, replace(KILLED, crash="Fatal Python error: Segmentation fault\n..."), 10.0)
    roster.advance(10.0)
    (submit,) = roster.advance(10.5)
    assert isinstance(submit, Submit)
    assert submit.before == Obituary(
        f"generation 0: actor-0 was killed by SIGSEGV in {KILLED.doing}\n"
        "Fatal Python error: Segmentation fault\n...",
        "crashed",
    )
    roster.ended(ACTOR, 1, replace(KILLED, hung="step of group 0 did not return"), 20.0)
    roster.advance(20.0)
    (submit,) = roster.advance(21.5)
    assert isinstance(submit, Submit)
    assert submit.before is not None
    assert submit.before.kind == "hung"
    assert "was killed, since step of group 0" in submit.before.text


def test_a_cluster_that_is_just_growing_is_not_taken_for_one_of_a_single_worker() -> None:
    """Else the learner would share the worker that happened to come first with an actor, for good."""
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS[:1], 1.0)
    assert roster.advance(1.0) == []
    assert roster.next_time(1.0) == GATHERING_SECONDS
    roster.see_workers(WORKERS, 2.0)
    (submit,) = roster.advance(2.0)
    assert isinstance(submit, Submit)
    assert not roster.plan()[0].shared


def test_a_single_worker_hosts_everything() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS[:1], 0.0)
    roster.advance(0.0)
    (submit,) = roster.advance(GATHERING_SECONDS)
    assert isinstance(submit, Submit)
    assert roster.plan()[0].shared


def test_workers_whose_lifetimes_end_again_and_again_count_as_no_failure() -> None:
    roster = running()
    for generation in range(20):
        now = 10.0 + generation
        place = next(status.worker for status in roster.roles() if status.role == ACTOR)
        assert place is not None
        roster.worker_left(place, now)
        roster.see_workers(WORKERS, now)  # its nanny has started it again
        roster.advance(now)
        assert f"its worker {place} leaves the cluster; starting" in roster.notices[-1]
    assert (roster.phase, roster.failure) == ("running", None)
    assert state(roster, ACTOR) == ("submitted", 20)


@pytest.mark.parametrize("result", [crashed(), RoleResult("lost"), RoleResult("left", 0)])
def test_one_that_could_tell_itself_or_ended_in_order_leaves_nothing_to_tell(result: RoleResult) -> None:
    roster = running()
    roster.ended(ACTOR, 0, result, 10.0)
    roster.advance(10.0)
    submits = [c for c in roster.advance(10.5) if isinstance(c, Submit)]
    assert all(submit.before is None for submit in submits)


def silent(index: int, generation: int) -> Note:
    return note(LEARNER, 0, "message", kind="silent", role="train", index=index, generation=generation)


def test_an_actor_that_fell_silent_is_replaced_although_its_process_is_there() -> None:
    roster = running()
    roster.heard(silent(0, 0), 50.0)
    assert roster.advance(50.0) == [Cancel(ACTOR, 0)]
    (submit,) = roster.advance(50.5)
    assert isinstance(submit, Submit)
    assert (submit.role, submit.generation) == (ACTOR, 1)
    assert submit.before == Obituary("generation 0: actor-0 fell silent", "hung")
    assert roster.notices == ["actor-0 fell silent; starting generation 1 in 0.5 s"]
    assert state(roster, OTHER) == ("running", 0)


def test_silence_of_an_older_generation_or_of_nobody_changes_nothing() -> None:
    roster = running()
    roster.ended(ACTOR, 0, crashed(), 10.0)
    roster.advance(11.0)
    for message in (silent(0, 0), silent(9, 1)):
        roster.heard(message, 12.0)
    assert state(roster, ACTOR) == ("submitted", 1)
    assert roster.restarts == 1


def test_news_of_an_older_generation_changes_nothing() -> None:
    roster = running()
    roster.ended(ACTOR, 0, crashed(), 10.0)
    roster.advance(11.0)
    roster.ended(ACTOR, 0, crashed("late"), 12.0)
    roster.heard(started(ACTOR, generation=0, attempt="late"), 12.0)
    assert state(roster, ACTOR) == ("submitted", 1)
    assert roster.restarts == 1


def test_an_end_that_is_told_twice_counts_once() -> None:
    roster = running()
    roster.heard(note(ACTOR, 0, "ended", **asdict(crashed())), 10.0)
    roster.ended(ACTOR, 0, crashed(), 10.1)
    roster.advance(10.1)
    assert state(roster, ACTOR) == ("waiting", 1)


def test_a_task_that_dask_runs_again_is_replaced() -> None:
    roster = running()
    roster.heard(started(ACTOR, attempt="b"), 10.0)
    commands = roster.advance(10.0)
    assert commands[0] == Cancel(ACTOR, 0)
    assert isinstance(commands[1], Submit)
    assert commands[1].generation == 1


def test_a_workers_end_is_no_failure_of_its_actor_until_it_comes_again() -> None:
    roster = running()
    lost = [worker for worker in WORKERS if worker.address == roster.roles()[1].worker]
    for generation in range(5):
        now = 10.0 + 20 * generation
        roster.see_workers([worker for worker in WORKERS if worker not in lost], now)
        roster.advance(now)
        roster.see_workers(WORKERS, now + 18.0)
        roster.advance(now + 18.0)
        if roster.phase != "running":
            break
        assert state(roster, ACTOR) == ("submitted", generation + 1)
    # The first loss is free, the next three are allowed restarts, the fifth is one too many.
    assert generation == 4
    assert "4 failures of actors within 100 s" in str(roster.failure)


def test_an_actor_without_a_place_waits_for_a_worker() -> None:
    roster = running()
    roster.see_workers(WORKERS[:2], 10.0)
    assert roster.advance(10.0) == [Cancel(OTHER, 0)]
    assert roster.next_time(10.0) is None
    assert roster.advance(50.0) == []
    assert roster.phase == "running"
    roster.see_workers([*WORKERS[:2], WorkerInfo("tcp://10.0.0.9:4000", "10.0.0.9")], 60.0)
    (submit,) = roster.advance(60.0)
    assert isinstance(submit, Submit)
    assert submit.place.host == "10.0.0.9"


def test_a_leaving_worker_costs_its_actor_nothing() -> None:
    roster = running()
    for generation in range(10):
        roster.ended(ACTOR, generation, RoleResult("left"), float(generation))
        roster.see_workers(WORKERS, float(generation))  # another one in its place
        roster.advance(float(generation))
    assert roster.phase == "running"
    assert roster.restarts == 10


@pytest.mark.parametrize(
    "result", [crashed(retryable=False), RoleResult("ended", 3)], ids=["not retryable", "exit code 3"]
)
def test_what_a_restart_cannot_cure_stops_everything(result: RoleResult) -> None:
    roster = running()
    roster.ended(ACTOR, 0, result, 10.0)
    assert roster.advance(10.0) == [Cancel(LEARNER, 0), Cancel(OTHER, 0)]
    for role in (LEARNER, OTHER):
        roster.ended(role, 0, RoleResult("stopped", 0), 11.0)
    roster.advance(11.0)
    assert roster.phase == "ended"
    assert isinstance(roster.error(), RunFailed)
    assert "another start would not help" in str(roster.error())


def test_the_same_exception_twice_shows_where_it_happened() -> None:
    roster = running()
    roster.ended(ACTOR, 0, crashed(), 10.0)
    roster.advance(11.0)
    roster.heard(started(ACTOR, 1), 11.0)
    roster.ended(ACTOR, 1, crashed(), 12.0)
    assert str(roster.error()).splitlines() == [
        "actor-0 failed with ValueError: boom; actor-0 failed with the same exception twice within 100 s",
        "  role: actor-0, generation 1",
        "  host: node (worker tcp://10.0.0.1:4000)",
        "  log: node.log",
        "",
        "where",
    ]


def test_the_learners_end_gives_actors_time_and_not_for_ever() -> None:
    roster = running()
    roster.ended(LEARNER, 0, RoleResult("ended", 0, "done"), 10.0)
    assert roster.advance(10.0) == []
    assert roster.phase == "finishing"
    roster.ended(ACTOR, 0, RoleResult("ended", 0, "finished"), 11.0)
    assert roster.advance(11.0) == []
    assert roster.next_time(11.0) == 20.0
    assert roster.advance(20.0) == [Cancel(OTHER, 0)]
    roster.advance(20.0 + 10 + STOP_MARGIN)
    assert roster.phase == "ended"
    assert roster.error() is None
    assert roster.notices == ["actor-1 on host of actor-1 did not confirm its end"]


def test_an_actor_that_is_told_of_the_end_before_the_driver_is_not_started_again() -> None:
    roster = running()
    roster.ended(ACTOR, 0, RoleResult("ended", 0, "finished"), 10.0)
    assert roster.advance(10.0) == []
    assert state(roster, ACTOR) == ("ended", 0)
    assert roster.phase == "running"


def test_stop_waits_for_every_role_that_has_started() -> None:
    roster = running()
    roster.stop(10.0)
    assert roster.advance(10.0) == [Cancel(LEARNER, 0), Cancel(ACTOR, 0), Cancel(OTHER, 0)]
    for role in (ACTOR, OTHER):
        roster.ended(role, 0, RoleResult("stopped", 0), 11.0)
    assert roster.advance(11.0) == []
    assert roster.phase == "stopping"
    roster.ended(LEARNER, 0, RoleResult("stopped", 0), 12.0)
    roster.advance(12.0)
    assert roster.phase == "ended"
    assert roster.error() is None


def test_a_task_that_begins_while_it_is_cancelled_is_waited_for() -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.advance(0.0)
    roster.stop(1.0)
    roster.heard(started(LEARNER), 1.1)
    roster.advance(5.0)
    assert roster.phase == "stopping"
    assert roster.next_time(5.0) == pytest.approx(1.1 + 20 + STOP_MARGIN)


def test_notes_for_people_are_handed_on() -> None:
    roster = running()
    roster.heard(note(LEARNER, 0, "message", kind="note", text="restored checkpoint 3"), 1.0)
    assert roster.notices == ["restored checkpoint 3"]


@pytest.mark.parametrize(
    ("exception", "kind"),
    [("ConfigError", ConfigError), ("CheckpointError", RunFailed), ("Broken", RunFailed)],
)
def test_what_the_learner_refuses_is_one_message_without_a_traceback(
    exception: str, kind: type[Exception]
) -> None:
    roster = Roster(CONFIG, 0.0)
    roster.see_workers(WORKERS, 0.0)
    roster.advance(0.0)
    failed = {
        "exception": exception,
        "message": "no GPU here",
        "traceback": "File session.py",
        "retryable": False,
    }
    result = RoleResult("ended", 3, failed=failed, host="node", log_path="learner-0-g0.log")
    roster.ended(LEARNER, 0, result, 1.0)
    error = roster.error()
    assert type(error) is kind
    assert "no GPU here" in str(error)
    assert "learner-0-g0.log" in str(error)
    assert ("session.py" in str(error)) == (exception == "Broken")
    if kind is ConfigError:
        assert str(error) == "no GPU here (the learner, on node; its log is learner-0-g0.log)"

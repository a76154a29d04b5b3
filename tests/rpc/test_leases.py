"""The lease table: who gets a block, who loses it, and when it is free again."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from seedflow.rpc.leases import (
    DroppedLease,
    GrantedLease,
    Lease,
    LeaseTable,
    RefusedLease,
    Registration,
    Role,
)

LEASE_SECONDS = 30.0


def table(train: int = 2, evaluation: int = 1, spare: int = 1) -> LeaseTable:
    return LeaseTable(train, evaluation, spare, 2, 8, "print", LEASE_SECONDS)


def train(index: int = 0, generation: int = 0) -> Registration:
    return Registration("train", index, generation, "print", 2, 8)


def grant(leases: LeaseTable, registration: Registration, now: float = 0.0) -> Lease:
    decision = leases.register(registration, now)
    assert isinstance(decision, GrantedLease)
    return decision.lease


def refusal(leases: LeaseTable, registration: Registration, now: float = 0.0) -> RefusedLease:
    decision = leases.register(registration, now)
    assert isinstance(decision, RefusedLease)
    return decision


def test_environment_ids_follow_from_the_index() -> None:
    leases = table()
    assert grant(leases, train(1)).env_ids == range(16, 32)
    assert grant(leases, train(0)).env_ids == range(16)


def test_evaluation_actors_may_step_fewer_environments_and_count_theirs_apart() -> None:
    leases = table(evaluation=2)
    lease = grant(leases, Registration("eval", 1, 0, "print", 1, 4))
    assert (lease.groups, lease.envs, lease.env_ids) == (1, 4, range(16, 20))


def test_the_same_generation_twice_is_refused_for_good_with_a_clear_message() -> None:
    leases = table()
    grant(leases, train(0, generation=2))
    refused = refusal(leases, train(0, generation=2))
    assert refused.reason == "generation 2 of train actor 0 is already connected"
    assert not refused.retryable
    older = refusal(leases, train(0, generation=1))
    assert older.reason.endswith("already connected, which is newer than generation 1")
    assert leases.counts().active == 1


def test_a_higher_generation_takes_over_in_another_block() -> None:
    leases = table()
    older = grant(leases, train(0, generation=0))
    decision = leases.register(train(0, generation=1), 0.0)
    assert isinstance(decision, GrantedLease)
    assert decision.superseded == older
    assert decision.lease.block != older.block
    assert decision.lease.id != older.id
    assert leases.counts().quarantined == 1


def test_an_actor_that_closed_may_come_back_with_its_generation() -> None:
    leases = table()
    first = grant(leases, train())
    assert leases.writer_gone(first.id) == DroppedLease(first, "the actor closed its connection", "closed")
    assert grant(leases, train()).id != first.id
    assert leases.counts().restarts == 0


def test_restarts_count_new_generations_of_training_actors() -> None:
    leases = table()
    for generation in (0, 1, 1, 3):
        leases.writer_gone(grant(leases, train(0, generation)).id)
    leases.writer_gone(grant(leases, Registration("eval", 0, 4, "print", 1, 1)).id)
    assert leases.counts().restarts == 2


@pytest.mark.parametrize(("role", "index"), [("train", 2), ("eval", 1)])
def test_an_index_beyond_the_room_is_full_for_now(role: Role, index: int) -> None:
    refused = refusal(table(), Registration(role, index, 0, "print", 2, 8))
    assert refused.reason.startswith(f"full: no room for {role} actor {index}")
    assert refused.retryable


@pytest.mark.parametrize(
    ("registration", "named"),
    [
        (Registration("train", 0, 0, "other", 2, 8), "fingerprint 'other' (expected 'print')"),
        (Registration("train", 0, 0, "print", 1, 8), "groups 1 (expected 2)"),
        (Registration("train", 0, 0, "print", 2, 4), "envs per group 4 (expected 8)"),
        (Registration("eval", 0, 0, "print", 2, 9), "envs per group 9 (expected 1 to 8)"),
        (Registration("eval", 0, 0, "print", 0, 8), "groups 0 (expected 1 to 2)"),
        (Registration("train", 0, 0, "other", 2, 9), "(expected 'print'), envs per group 9"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_for_good_by_name(
    registration: Registration, named: str
) -> None:
    refused = refusal(table(), registration)
    assert named in refused.reason
    assert not refused.retryable


def test_a_takeover_without_a_free_block_succeeds_once_the_older_actor_has_left() -> None:
    leases = table(train=1, evaluation=0, spare=0)
    older = grant(leases, train(0, 0))
    refused = refusal(leases, train(0, 1))
    assert refused.retryable
    assert refused.superseded == older
    leases.writer_gone(older.id)
    assert grant(leases, train(0, 1)).block == older.block


def test_a_block_is_granted_again_only_when_its_writer_is_gone_and_no_batch_holds_it() -> None:
    leases = table(train=1, evaluation=0, spare=0)
    lease = grant(leases, train())
    leases.hold([lease.id])
    leases.hold([lease.id])
    leases.drop(lease.id, "expired")
    leases.writer_gone(lease.id)
    leases.release([lease.id])
    assert refusal(leases, train()).retryable
    leases.release([lease.id])
    assert grant(leases, train()).block == lease.block
    with pytest.raises(KeyError):
        leases.hold([lease.id])


def test_releasing_more_often_than_holding_is_a_fault_of_the_caller() -> None:
    leases = table()
    lease = grant(leases, train())
    with pytest.raises(ValueError, match="more often"):
        leases.release([lease.id])


def test_a_silent_lease_expires_and_a_heartbeat_or_ring_keeps_it() -> None:
    leases = table(train=3)
    silent, beating, ringing = (grant(leases, train(i)) for i in range(3))
    leases.heartbeat(beating.id, 20.0)
    leases.ring(ringing.id, 0, 20.0, all_first=True)
    assert leases.tick(LEASE_SECONDS) == []
    (dropped,) = leases.tick(LEASE_SECONDS + 0.1)
    assert dropped.lease == silent
    assert "30 s (inference.lease_seconds)" in dropped.reason
    assert leases.active() == [beating, ringing]
    leases.heartbeat(silent.id, 40.0)  # too late
    assert leases.counts().active == 2


def test_a_second_ring_before_the_reply_drops_the_lease() -> None:
    leases = table()
    lease = grant(leases, train())
    assert leases.ring(lease.id, 1, 0.0, all_first=True) is None
    assert leases.ring(lease.id, 0, 0.0, all_first=True) is None
    assert leases.reply(lease.id, 1, 0.0)
    assert leases.ring(lease.id, 1, 0.0, all_first=False) is None
    dropped = leases.ring(lease.id, 0, 0.0, all_first=False)
    assert dropped == DroppedLease(lease, "rang for group 0 while its request was in flight", "protocol")
    assert leases.ring(lease.id, 1, 0.0, all_first=False) is None  # nobody cares any more
    assert not leases.reply(lease.id, 0, 0.0)


def test_the_first_request_of_every_group_begins_with_a_reset() -> None:
    leases = table()
    lease = grant(leases, train())
    assert leases.fresh(lease.id, 0)
    assert leases.ring(lease.id, 0, 0.0, all_first=True) is None
    assert not leases.fresh(lease.id, 0)
    dropped = leases.ring(lease.id, 1, 0.0, all_first=False)
    assert dropped is not None
    assert "group 1 does not begin with a reset" in dropped.reason


def test_a_ring_for_a_group_the_lease_does_not_have_drops_it() -> None:
    leases = table()
    lease = grant(leases, Registration("eval", 0, 0, "print", 1, 8))
    dropped = leases.ring(lease.id, 1, 0.0, all_first=True)
    assert dropped == DroppedLease(lease, "rang for group 1 of 1", "protocol")


def test_a_reply_to_a_group_that_did_not_ring_is_a_fault_of_the_caller() -> None:
    leases = table()
    with pytest.raises(ValueError, match="no request in flight"):
        leases.reply(grant(leases, train()).id, 0, 0.0)


def test_every_refusal_and_every_end_is_counted_by_its_cause() -> None:
    leases = table(train=2, spare=0, evaluation=0)
    older = grant(leases, train(0, generation=1))
    refusal(leases, train(0, generation=1))
    refusal(leases, train(0, generation=0))
    refusal(leases, Registration("train", 1, 0, "other", 2, 8))
    refusal(leases, train(7))
    leases.refused("token")
    newer = grant(leases, train(0, generation=2))
    leases.drop(newer.id, "does not read", "unread")
    refusal(leases, train(1))  # both blocks wait for their writers
    leases.writer_gone(older.id)
    closing = grant(leases, train(1))
    leases.writer_gone(closing.id)
    broken = grant(leases, train(1))
    leases.ring(broken.id, 9, 0.0, all_first=True)
    leases.writer_gone(broken.id)
    grant(leases, train(1))
    leases.tick(LEASE_SECONDS + 1.0)
    values = leases.counts().metrics()
    causes = ("token", "version", "mismatch", "duplicate", "stale", "full")
    assert [values[f"lease/refused_{cause}"] for cause in causes] == [1, 0, 1, 1, 1, 2]
    endings = ("closed", "silent", "protocol", "unread", "superseded")
    assert [values[f"lease/dropped_{ending}"] for ending in endings] == [1] * 5
    assert (values["lease/refused"], values["lease/dropped"], values["lease/registrations"]) == (6, 5, 5)


def test_time_in_which_the_learner_stood_still_counts_against_nobody() -> None:
    leases = table()
    lease = grant(leases, train())
    leases.forgive(1000.0)
    assert leases.tick(1000.0 + LEASE_SECONDS) == []
    assert [gone.lease for gone in leases.tick(1000.1 + LEASE_SECONDS)] == [lease]


def test_the_slowest_actor_is_the_one_that_lets_the_learner_wait_longest() -> None:
    leases = table(train=3)
    quick, slow, busy = (grant(leases, train(i)) for i in range(3))

    def slowest(now: float) -> float:
        assert leases.tick(now) == []
        return leases.counts().slowest_seconds

    for lease in (quick, slow, busy):
        leases.ring(lease.id, 0, 1.0, all_first=True)
    assert slowest(5.0) == 0.0  # all of them wait for the learner
    leases.reply(slow.id, 0, 5.0)
    leases.reply(quick.id, 0, 8.0)
    assert slowest(12.0) == 7.0
    leases.ring(slow.id, 0, 13.0, all_first=False)
    assert slowest(13.0) == 5.0


class LeaseTableMachine(RuleBasedStateMachine):
    """Actors that come, ring, fall silent, break rules and go in any order, against a plain model."""

    TRAIN, EVAL, SPARE, GROUPS, ENVS = 2, 1, 1, 2, 4

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(
            self.TRAIN, self.EVAL, self.SPARE, self.GROUPS, self.ENVS, "print", LEASE_SECONDS
        )
        self.now = 0.0
        self.granted: list[Lease] = []
        self.refused = 0
        self.active: dict[int, Lease] = {}
        self.writers: dict[int, Lease] = {}  # whoever may still write
        self.holds: dict[int, int] = {}
        self.in_flight: set[tuple[int, int]] = set()

    def pick(self, data: st.DataObject, leases: object) -> int:
        return data.draw(st.sampled_from(sorted(leases)))  # type: ignore[call-overload]

    def end(self, dropped: DroppedLease | None, lease_id: int) -> None:
        assert (dropped is not None) == (lease_id in self.active)
        if dropped is not None:
            assert dropped.lease == self.active.pop(lease_id)

    @rule(
        role=st.sampled_from(["train", "eval"]),
        index=st.integers(0, 2),
        generation=st.integers(0, 3),
        fingerprint=st.sampled_from(["print", "print", "print", "other"]),
    )
    def register(self, role: Role, index: int, generation: int, fingerprint: str) -> None:
        registration = Registration(role, index, generation, fingerprint, self.GROUPS, self.ENVS)
        before = [lease for lease in self.active.values() if (lease.role, lease.index) == (role, index)]
        unusable = {lease.block for lease in self.writers.values()}
        unusable |= {self.granted[i].block for i, n in self.holds.items() if n}
        decision = self.table.register(registration, self.now)
        if decision.superseded is not None:
            assert before == [decision.superseded]
            assert decision.superseded.generation < generation
            del self.active[decision.superseded.id]
        if isinstance(decision, RefusedLease):
            self.refused += 1
            return
        lease = decision.lease
        assert fingerprint == "print"
        assert before == [decision.superseded] or not before
        assert lease.block not in unusable
        assert lease.id not in [other.id for other in self.granted]
        self.granted.append(lease)
        self.active[lease.id] = self.writers[lease.id] = lease
        self.holds[lease.id] = 0

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), group=st.integers(0, 2), all_first=st.booleans())
    def ring(self, data: st.DataObject, group: int, all_first: bool) -> None:
        lease_id = self.pick(data, self.writers)
        fresh = self.table.fresh(lease_id, group)
        wrong = group >= self.GROUPS or (lease_id, group) in self.in_flight or (fresh and not all_first)
        dropped = self.table.ring(lease_id, group, self.now, all_first)
        assert (dropped is not None) == (wrong and lease_id in self.active)
        if dropped is not None:
            self.end(dropped, lease_id)
        elif lease_id in self.active:
            self.in_flight.add((lease_id, group))

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def reply(self, data: st.DataObject) -> None:
        lease_id, group = data.draw(st.sampled_from(sorted(self.in_flight)))
        self.in_flight.discard((lease_id, group))
        assert self.table.reply(lease_id, group, self.now) == (lease_id in self.active)

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def actor_leaves(self, data: st.DataObject) -> None:
        lease_id = self.pick(data, self.writers)
        del self.writers[lease_id]
        self.end(self.table.writer_gone(lease_id), lease_id)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        lease_id = self.pick(data, self.active)
        self.end(self.table.drop(lease_id, "a fault"), lease_id)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        lease_id = self.pick(data, self.active)
        self.table.hold([lease_id])
        self.holds[lease_id] += 1

    @precondition(lambda self: any(self.holds.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease_id = self.pick(data, [i for i, n in self.holds.items() if n])
        self.table.release([lease_id])
        self.holds[lease_id] -= 1

    @rule(seconds=st.sampled_from([1.0, LEASE_SECONDS + 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for dropped in self.table.tick(self.now):
            self.end(dropped, dropped.lease.id)
        if seconds > LEASE_SECONDS:
            assert not self.active

    @invariant()
    def no_block_belongs_to_two(self) -> None:
        blocks = [lease.block for lease in self.active.values()]
        assert len(blocks) == len(set(blocks))
        assert self.table.active() == sorted(self.active.values(), key=lambda lease: lease.id)
        owners = [(lease.role, lease.index) for lease in self.active.values()]
        assert len(owners) == len(set(owners))

    @invariant()
    def counters_add_up(self) -> None:
        counts = self.table.counts()
        assert counts.active == len(self.active)
        assert counts.granted == len(self.granted) == counts.active + counts.dropped
        assert counts.refused == self.refused
        assert counts.registrations == counts.granted + counts.refused
        assert counts.active + counts.quarantined + counts.free == self.table.blocks
        in_use = set(self.writers) | {lease_id for lease_id, n in self.holds.items() if n}
        assert counts.free == self.table.blocks - len(in_use)


LeaseTableMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLeaseTableMachine = LeaseTableMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_random_sequences_of_lease_events() -> None:
    many = settings(max_examples=10_000, stateful_step_count=40, deadline=None, database=None)
    run_state_machine_as_test(LeaseTableMachine, settings=many)

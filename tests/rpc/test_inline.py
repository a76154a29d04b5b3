"""The transport of the one-process runtime: the same leases and rows without sockets."""

from collections.abc import Iterator

import numpy as np
import pytest

from seedflow.errors import ConnectionLost, RegistrationRefused
from seedflow.rpc.connection import Exit
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import LeaseTable
from seedflow.rpc.slab import BlockLayout, Slab
from seedflow.rpc.transport import FaultReported, GroupRang, LearnerTransport, LeaseClosed, LeaseOpened
from tests.rpc.echo_learner import SPEC, registration


@pytest.fixture
def transport() -> Iterator[InlineTransport]:
    layout = BlockLayout(SPEC, 2, 4)
    table = LeaseTable(2, 1, 1, 2, 4, SPEC.fingerprint, 30.0)
    with Slab(layout, table.blocks) as slab:
        transport = InlineTransport(layout, slab, table)
        yield transport
        transport.close()


def test_rows_and_actions_are_exchanged_in_the_order_of_the_rings(transport: InlineTransport) -> None:
    learner: LearnerTransport = transport
    actor = transport.connect(registration())
    assert actor.env_ids == range(8)
    assert learner.poll(10.0) == [LeaseOpened(actor.lease)]
    for group in (1, 0):
        actor.rows(group)["first"][:] = True
        actor.rows(group)["reward"][:] = group
        actor.ring(group)
    assert actor.wait(10.0) is None
    rang = learner.poll(10.0)
    assert rang == [GroupRang(actor.lease, 1), GroupRang(actor.lease, 0)]
    learner.hold([actor.lease_id])
    np.testing.assert_array_equal(learner.slab.fields["reward"][actor.lease.block], np.repeat([0, 1], 4))
    learner.slab.fields["action"][actor.lease.block] = np.arange(8)
    for group in (1, 0):
        learner.reply(actor.lease_id, group)
    learner.release([actor.lease_id])
    assert [actor.wait(0), actor.wait(0), actor.wait(0)] == [1, 0, None]
    assert actor.rows(1)["action"].tolist() == [4, 5, 6, 7]
    assert learner.poll(10.0) == []


def test_a_refusal_is_raised_where_it_is_asked_for(transport: InlineTransport) -> None:
    transport.connect(registration())
    with pytest.raises(RegistrationRefused, match="already connected"):
        transport.connect(registration())


def test_a_ring_that_breaks_the_protocol_ends_the_lease(transport: InlineTransport) -> None:
    actor = transport.connect(registration())
    actor.ring(0)  # without a reset
    _, closed = transport.poll(0.0)
    assert isinstance(closed, LeaseClosed)
    assert "does not begin with a reset" in closed.reason
    for attempt in (lambda: actor.wait(0.0), lambda: actor.ring(1)):
        with pytest.raises(ConnectionLost, match="does not begin with a reset"):
            attempt()
    assert transport.counts().quarantined == 1
    actor.close()
    assert transport.counts().quarantined == 0


def test_a_newer_generation_takes_over(transport: InlineTransport) -> None:
    older = transport.connect(registration(0, 0))
    newer = transport.connect(registration(0, 1))
    events = transport.poll(0.0)
    assert [type(event) for event in events] == [LeaseOpened, LeaseClosed, LeaseOpened]
    with pytest.raises(Exit, match="superseded by generation 1") as raised:
        older.wait(0.0)
    assert raised.value.code == "superseded"
    assert newer.wait(0.0) is None


def test_the_end_of_the_run_reaches_present_and_late_actors(transport: InlineTransport) -> None:
    actor = transport.connect(registration())
    transport.tell_exit("all steps are done")
    with pytest.raises(Exit, match="all steps are done"):
        actor.wait(0.0)
    with pytest.raises(Exit, match="all steps are done"):
        transport.connect(registration(1))


def test_a_fault_is_reported_before_the_lease_closes(transport: InlineTransport) -> None:
    actor = transport.connect(registration())
    actor.report_fault("ZeroDivisionError")
    actor.close()
    actor.close()
    assert transport.poll(0.0)[1:] == [
        FaultReported(actor.lease, "ZeroDivisionError", "raised"),
        LeaseClosed(actor.lease, "the actor closed its connection", "closed"),
    ]

"""Connections that break, are reset or go dead, at any moment: who notices, and who is not disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seedflow.errors import ConnectionLost
from seedflow.rpc.grpc_client import GrpcConnection
from seedflow.rpc.transport import LeaseClosed
from tests.rpc.echo_learner import TOKEN
from tests.rpc.gateway_rig import TIMEOUT, RecordingLearner, Rig, fill, pixels, running, step, until
from tests.rpc.line import Line, line_to


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with running(RecordingLearner(pixels(4), lease_seconds=30.0), tmp_path) as rig:
        yield rig


@pytest.fixture
def line(rig: Rig) -> Iterator[Line]:
    with line_to(rig.gateway.address) as line:
        yield line


def connect(rig: Rig, line: Line, heartbeat_seconds: float = 5.0, index: int = 0) -> GrpcConnection:
    """An actor whose connection goes over the line."""
    registered = rig.learner.registered(index)
    layout = rig.learner.layout
    return GrpcConnection.open(line.address, TOKEN, registered, layout, TIMEOUT, heartbeat_seconds)


def check_undisturbed(rig: Rig, other: GrpcConnection, seed: int) -> None:
    step(other, 0, seed=seed)
    assert not rig.learner.closed(other.lease_id)


def test_a_reset_in_mid_step_ends_the_lease_and_harms_no_other(rig: Rig, line: Line) -> None:
    rig.learner.answering = False
    other = rig.connect(index=9)
    with connect(rig, line) as actor:
        fill(actor, 0, seed=0, first=True)
        actor.ring(0)
        until(lambda: rig.learner.rings, "the request")
        line.reset()
        with pytest.raises(ConnectionLost):
            actor.wait(TIMEOUT)
        until(lambda: rig.learner.closed(actor.lease_id), "the end of the lease")
        until(lambda: rig.learner.server.counts().quarantined == 0, "its block")
    rig.learner.answering = True
    step(other, 0, seed=0, first=True)
    again = rig.connect(index=0)
    step(again, 0, seed=1, first=True)
    assert rig.learner.server.metrics()["lease/dropped_closed"] == 1
    until(lambda: rig.gateway.counts().broken == 1, "the gateway's count")
    for leaving in (other, again):
        leaving.close()
    until(lambda: rig.gateway.counts().streams == 0, "the others' leave")
    assert rig.gateway.counts().broken == 1, "only what was cut counts"


def test_a_stream_cut_in_mid_batch_keeps_its_block_until_the_batch_is_done(rig: Rig, line: Line) -> None:
    learner = rig.learner
    learner.answering = False
    with connect(rig, line) as actor:
        fill(actor, 0, seed=0, first=True)
        actor.ring(0)
        until(lambda: learner.rings, "the request")
        learner.call(lambda: learner.server.hold([actor.lease_id]))  # the batch begins to read
        line.reset()
        until(lambda: learner.closed(actor.lease_id), "the end of the lease")
        replacement = rig.connect(index=0, generation=1)
        assert replacement.lease.block != actor.lease.block
        assert learner.server.counts().quarantined == 1
        learner.call(lambda: learner.answer(learner.rings[0]))  # goes nowhere
        learner.call(lambda: learner.server.release([actor.lease_id]))
        until(lambda: learner.server.counts().quarantined == 0, "its block")
    learner.answering = True
    step(replacement, 0, seed=1, first=True)


def test_a_connection_that_is_half_open_loses_its_lease_and_harms_no_other(tmp_path: Path) -> None:
    with running(RecordingLearner(pixels(4), lease_seconds=2.0), tmp_path) as rig:
        other = rig.connect(index=9, heartbeat_seconds=0.1)
        step(other, 0, seed=0, first=True)
        with line_to(rig.gateway.address) as line, connect(rig, line, heartbeat_seconds=0.1) as actor:
            step(actor, 0, seed=0, first=True)
            line.dead.set()
            closed = rig.learner.event(LeaseClosed)
            assert (closed.lease.id, closed.ending) == (actor.lease_id, "silent")
            check_undisturbed(rig, other, seed=1)
            replacement = rig.connect(index=0, generation=1)  # served although the old one still stands
            step(replacement, 0, seed=2, first=True)
            line.reset()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_both_ends_of_a_half_open_connection_notice_without_a_lease_running_out(tmp_path: Path) -> None:
    with running(RecordingLearner(pixels(4), lease_seconds=600.0), tmp_path) as rig:
        other = rig.connect(index=9)
        step(other, 0, seed=0, first=True)
        with line_to(rig.gateway.address) as line, connect(rig, line) as actor:
            step(actor, 0, seed=0, first=True)
            line.dead.set()
            with pytest.raises(ConnectionLost):
                actor.wait(200.0)
            until(lambda: rig.learner.closed(actor.lease_id), "the gateway to notice")
            check_undisturbed(rig, other, seed=1)


def test_a_dead_gateway_harms_no_actor_of_the_learners_host(rig: Rig) -> None:
    local = rig.learner.connect(rig.learner.registered(9))
    with local:
        remote = rig.connect(index=0)
        step(remote, 0, seed=0, first=True)
        step(local, 0, seed=0, first=True)
        rig.kill_gateway()
        with pytest.raises(ConnectionLost):
            remote.wait(TIMEOUT)
        step(local, 0, seed=1)
        until(lambda: rig.learner.closed(remote.lease_id), "the end of the remote lease")
        rig.gateway.restart(TIMEOUT)
        step(rig.connect(index=0), 0, seed=2, first=True)
        step(local, 0, seed=3)

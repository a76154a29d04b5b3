"""Steps and actions as bytes: those of protobuf, without its copies."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from seedflow.rpc.frames import (
    ACTIONS,
    STEP,
    Frame,
    header,
    join,
    parse,
    parse_actor_message,
    parse_learner_message,
    serialize,
)
from seedflow.rpc.seedflow_pb2 import Actions, ActorMessage, Heartbeat, LearnerMessage, Step

PAYLOADS = st.binary(max_size=300) | st.sampled_from([bytes(127), bytes(128), bytes(16384), bytes(300_000)])
GROUPS = st.integers(0, 300)


@given(group=GROUPS, payload=PAYLOADS)
def test_the_bytes_are_those_that_protobuf_makes(group: int, payload: bytes) -> None:
    halves = [memoryview(payload)[: len(payload) // 2], memoryview(payload)[len(payload) // 2 :]]
    step = join(header(STEP, group, len(payload)), halves)
    actions = join(header(ACTIONS, group, len(payload)), halves)
    assert ActorMessage.FromString(step) == ActorMessage(step=Step(group=group, payload=payload))
    assert LearnerMessage.FromString(actions) == LearnerMessage(actions=Actions(group=group, payload=payload))
    assert parse_actor_message(step) == Frame(group, memoryview(payload))
    assert parse_learner_message(actions) == Frame(group, memoryview(payload))


@given(group=GROUPS, payload=PAYLOADS)
def test_what_protobuf_makes_is_read_alike(group: int, payload: bytes) -> None:
    message = ActorMessage(step=Step(group=group, payload=payload))
    parsed = parse_actor_message(message.SerializeToString())
    if isinstance(parsed, Frame):
        assert parsed == Frame(group, memoryview(payload))
    else:  # protobuf leaves an empty payload out
        assert not payload
        assert parsed == message


def test_other_messages_go_the_usual_way() -> None:
    message = ActorMessage(heartbeat=Heartbeat())
    assert serialize(message) == message.SerializeToString()
    assert serialize(b"made already") == b"made already"
    assert parse_actor_message(message.SerializeToString()) == message


@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda data: bytes((STEP,)) + data))
def test_any_other_bytes_are_left_to_protobuf(data: bytes) -> None:
    frame = parse(STEP, data)
    try:
        message = ActorMessage.FromString(data)
    except DecodeError:
        assert frame is None
        return
    if frame is not None:
        assert message.step.payload == frame.payload
        assert message.step.group == frame.group % 2**32


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_message_that_is_cut_off_is_none(cut: int) -> None:
    whole = join(header(STEP, 3, 8), [memoryview(b"01234567")])
    assert parse(STEP, whole[:-cut]) is None
    with pytest.raises(DecodeError):
        parse_actor_message(whole[:-cut])

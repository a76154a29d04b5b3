"""Messages on the control socket: what is encoded comes back, and nothing else gets through."""

import json
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.errors import ConnectionLost
from seedflow.rpc import messages
from seedflow.rpc.leases import Lease, Registration
from seedflow.rpc.messages import (
    MAX_MESSAGE,
    MAX_TEXT,
    ExitOrder,
    Fault,
    Granted,
    Heartbeat,
    MalformedMessage,
    Message,
    Refused,
    Register,
    Reply,
    Ring,
    Silent,
    decode,
    encode,
    receive,
    send_granted,
)

any_text = st.text(st.characters(exclude_categories=()), max_size=200)  # lone surrogates too
numbers = st.integers(0, 2**62)
roles = st.sampled_from(["train", "eval"])
registrations = st.builds(Registration, roles, numbers, numbers, any_text, numbers, numbers)
leases = st.builds(
    Lease,
    id=numbers,
    block=numbers,
    role=roles,
    index=numbers,
    generation=numbers,
    env_ids=st.builds(range, st.integers(0, 10), st.integers(11, 2**62)),
    groups=numbers,
    envs=numbers,
)
all_messages = st.one_of(
    st.builds(Ring, st.integers(0, 255)),
    st.builds(Reply, st.integers(0, 255)),
    st.just(Heartbeat()),
    st.just(Silent()),
    st.builds(Register, any_text, registrations, numbers),
    st.builds(Granted, leases),
    st.builds(Refused, any_text, st.booleans()),
    st.builds(Fault, any_text, st.sampled_from(["raised", "hung", "crashed"])),
    st.builds(ExitOrder, any_text, st.sampled_from(["finished", "superseded", "dropped"])),
)
LEASE = Lease(3, 1, "train", 0, 2, range(8), 2, 4)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@given(all_messages)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    data = encode(message)
    assert decode(data) == message
    assert decode(memoryview(data)) == message


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_message_or_malformed(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    assert decode(encode(message)) == message


@given(
    st.integers(1, 8), st.recursive(st.none() | st.booleans() | numbers | any_text, st.lists, max_leaves=5)
)
def test_json_of_another_shape_is_malformed(kind: int, value: object) -> None:
    with pytest.raises(MalformedMessage):
        decode(bytes((kind,)) + json.dumps(value).encode() + b" ")


@given(all_messages.filter(lambda m: len(encode(m)) > 2), st.data())
def test_a_field_of_the_wrong_type_or_range_is_malformed(message: Message, data: st.DataObject) -> None:
    encoded = encode(message)
    body = json.loads(encoded[1:])
    part = body["registration"] if isinstance(message, Register) and data.draw(st.booleans()) else body
    name = data.draw(st.sampled_from(sorted(part)))
    part[name] = data.draw(st.sampled_from([None, -1, 2**63, 1.5, [1], [1, 2, 3], {}, [True, "x"]]))
    with pytest.raises(MalformedMessage, match=rf"{name}|role"):
        decode(encoded[:1] + json.dumps(body).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff{}",
        bytes((messages.RING,)),
        bytes((messages.REPLY, 0, 0)),
        bytes((messages.HEARTBEAT, 0)),
        bytes((messages.FAULT,)) + b"\xff\xfe",
        bytes((messages.FAULT,)) + b"[" * 60_000,
        bytes((messages.FAULT,)) + b'{"text":' + b"9" * 10_000 + b"}",
        bytes((messages.FAULT,)) + json.dumps({"text": "x" * (MAX_TEXT + 1)}).encode(),
        bytes((messages.FAULT,)) + b" " * MAX_MESSAGE,
    ],
    ids=["empty", "zero", "kind", "ring", "reply", "beat", "utf8", "nested", "number", "text", "size"],
)
def test_malformed_bytes_are_named_as_such(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(data)


@pytest.mark.parametrize("character", ["a", "\0", "\ud800", "\U0001f600"])
def test_a_long_traceback_is_cut_to_its_end_and_fits(character: str) -> None:
    data = encode(Fault("begin" + character * 50_000 + "end"))
    assert len(data) <= MAX_MESSAGE
    assert decode(data) == Fault(character * (MAX_TEXT - 3) + "end")


def test_a_token_is_not_shown() -> None:
    register = Register("secret", Registration("train", 0, 0, "f", 1, 1))
    assert "secret" not in repr(register)
    assert "secret" not in str(register)


def test_a_granted_lease_brings_a_file_descriptor(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with open(os.devnull) as file:
        send_granted(ours, Granted(LEASE), file.fileno())
        message, fd = receive(theirs)
        assert message == Granted(LEASE)
        assert fd is not None
        assert os.path.samestat(os.fstat(fd), os.fstat(file.fileno()))
        assert not os.get_inheritable(fd)
        os.close(fd)


def test_a_file_descriptor_nobody_asked_for_is_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with open(os.devnull) as file:
        socket.send_fds(ours, [encode(Reply(0))], [file.fileno()])
        open_before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(MalformedMessage, match="1 file descriptors"):
            receive(theirs)
        assert set(os.listdir("/proc/self/fd")) == open_before


def test_a_closed_socket_is_a_lost_connection(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.close()
    with pytest.raises(ConnectionLost):
        receive(theirs)


def test_the_last_word_is_heard_although_the_other_side_left_with_unread_messages(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.send(encode(Heartbeat()))  # never read, so the kernel reports a reset
    ours.send(encode(ExitOrder("done", "finished")))
    ours.close()
    assert receive(theirs) == (ExitOrder("done", "finished"), None)

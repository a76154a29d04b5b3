"""Archives that only store: what is written is plain zip, what is read is that and nothing else."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.errors import CheckpointDamaged
from seedflow.replay.disk.archive import Entry, archive_pieces, read_directory

NAMES = st.from_regex(r"[a-z0-9%_./]{1,20}", fullmatch=True)
CONTENTS = st.dictionaries(NAMES, st.lists(st.binary(max_size=40), max_size=4), max_size=5)


def entry(name: str, pieces: list[bytes]) -> Entry:
    return Entry(name, sum(map(len, pieces)), partial(list, pieces))


def archive(contents: dict[str, list[bytes]]) -> bytes:
    return b"".join(archive_pieces([entry(name, pieces) for name, pieces in contents.items()]))


def read(data: bytes) -> dict[str, bytes]:
    spans = read_directory(lambda offset, size: data[offset : offset + size], len(data))
    return {name: data[span.offset : span.offset + span.size] for name, span in spans.items()}


@given(CONTENTS)
def test_what_is_written_is_read_by_us_and_by_everybody(contents: dict[str, list[bytes]]) -> None:
    data = archive(contents)
    expected = {name: b"".join(pieces) for name, pieces in contents.items()}
    assert read(data) == expected
    with zipfile.ZipFile(io.BytesIO(data)) as other:
        assert other.testzip() is None
        assert {name: other.read(name) for name in other.namelist()} == expected


@given(CONTENTS, st.data())
def test_a_change_anywhere_in_the_structure_is_refused(
    contents: dict[str, list[bytes]], data: st.DataObject
) -> None:
    """What is found is within the archive, whatever the bytes say."""
    whole = bytearray(archive(contents))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole = whole[: data.draw(st.integers(0, len(whole)) | st.just(len(whole)))]
    try:
        spans = read_directory(lambda offset, size: bytes(whole[offset : offset + size]), len(whole))
    except CheckpointDamaged:
        return
    assert sum(span.size for span in spans.values()) <= len(whole)
    assert all(0 <= span.offset <= span.offset + span.size <= len(whole) for span in spans.values())


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    for content in (
        data,
        data + b"PK\5\6" + bytes(18),
        data + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 46, 0, 0),
    ):
        try:
            assert read(content) == {}
        except CheckpointDamaged:
            continue
        assert content == b"PK\5\6" + bytes(18), "the empty archive"


def written_by_zipfile(**settings: object) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as other:
        info = zipfile.ZipInfo("name", (1980, 1, 1, 0, 0, 0))
        for name, value in settings.items():
            setattr(other if name == "archive_comment" else info, name.removeprefix("archive_"), value)
        other.writestr(info, b"x" * 100)
        info.create_system = info.external_attr = 0
    return buffer.getvalue()


def test_zipfile_writes_the_same_where_it_is_told_to() -> None:
    assert written_by_zipfile() == archive({"name": [b"x" * 100]})


@pytest.mark.parametrize(
    "settings",
    [
        {"compress_type": zipfile.ZIP_DEFLATED},
        {"comment": b"hello"},
        {"extra": b"\1\2\4\0abcd"},
        {"archive_comment": b"hello"},
        {"date_time": (1999, 1, 1, 0, 0, 0)},
        {"filename": "n\xe4me"},
    ],
    ids=str,
)
def test_other_kinds_of_archives_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(CheckpointDamaged):
        read(written_by_zipfile(**settings))


def test_an_entry_that_is_there_twice_is_refused() -> None:
    data = b"".join(archive_pieces([entry("a", [b"1"]), entry("a", [b"2"])]))
    with pytest.raises(CheckpointDamaged, match="there twice"):
        read(data)


def test_what_lies_before_between_or_behind_is_refused() -> None:
    data = archive({"a": [b"1" * 10], "b": [b"2" * 10]})
    middle = data.index(b"PK\1\2")
    for changed in (b"x" + data, data + b"x", data[:middle] + b"x" + data[middle:]):
        with pytest.raises(CheckpointDamaged):
            read(changed)

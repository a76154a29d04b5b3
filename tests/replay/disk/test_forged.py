"""What a checkpoint claims is checked against its bytes, and takes no memory."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numcodecs import zstd

from seedflow.checkpoints import LocalStore, Manifest
from seedflow.errors import CheckpointDamaged, CheckpointError, ConfigError
from seedflow.replay.codec import CHECKSUM_BYTES
from seedflow.replay.disk.export import export_minari
from seedflow.replay.disk.health import verify_checkpoints
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.disk.segments import StoredChunks
from seedflow.replay.layout import ReplaySpec
from seedflow.specs import ArraySpec
from tests.replay.disk.forge import MEBIBYTE, forged, little_memory, outcomes, rewritten
from tests.replay.disk.ring import SPEC, Ring, encoded, saved

SPARSE = 80 * MEBIBYTE


def bombs() -> dict[str, Callable[[dict[str, Any]], None]]:
    def segment(document: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = document["parts"]["replay"]["state"]["segments"][0]
        return found

    def spec(document: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = document["parts"]["replay"]["state"]["spec"]
        return found

    return {
        "many chunks": lambda d: segment(d).update(chunks=5000),
        "too many chunks": lambda d: segment(d).update(chunks=2**31),
        "many sequences": lambda d: d["parts"]["replay"]["state"]["sequences"].update(count=2**39),
        "long sequences": lambda d: spec(d).update(unroll=2**30, burn_in=2**30),
        "large frames": lambda d: spec(d)["fields"][0].update(shape=[2**15, 2**12]),
        "enormous frames": lambda d: spec(d)["fields"][0].update(shape=[2**30, 2**30]),
        "long chunks": lambda d: spec(d).update(chunk=2**20, unroll=2**20, burn_in=0, period=2**20),
        "many arrays": lambda d: spec(d).update(
            fields=[{"name": f"observation/{n}", "shape": [], "dtype": "uint8"} for n in range(1200)]
        ),
        "many files": lambda d: d["parts"]["replay"]["files"].extend(
            {"path": f"segments/{n}", "bytes": 1, "crc32c": "00000000"} for n in range(1200)
        ),
    }


@pytest.mark.parametrize("name", bombs())
def test_what_a_manifest_claims_takes_no_memory(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "replay", Ring(capacity=6).arrive(30).snapshot())
    rewritten(tmp_path / "replay", bombs()[name])
    with little_memory():
        found = outcomes(tmp_path / "replay")
    assert "done" not in (found["load"], found["export"])


@pytest.mark.parametrize("which", ["segments", "sequences"])
def test_an_enormous_file_is_not_read(tmp_path: Path, which: str) -> None:
    root = tmp_path / "replay"
    saved(root, Ring(capacity=6).arrive(30).snapshot())
    (path,) = (root / which).iterdir()
    os.truncate(path, SPARSE)

    def claim(document: dict[str, Any]) -> None:
        for file in document["parts"]["replay"]["files"]:
            if file["path"].startswith(which):
                file["bytes"] = SPARSE

    rewritten(root, claim)
    with little_memory():
        found = outcomes(root)
    assert re.search(r"more than a segment can have|too many for \d+ sequences", found["load"])
    if which == "segments":
        assert (
            load_replay(LocalStore(root), Manifest.read(LocalStore(root), 1), on_damage="drop").lost_sequences
            == 6
        )


FRAMES = replace(SPEC, fields=(ArraySpec("observation/image", (84, 84), np.dtype("uint8")), *SPEC.fields[1:]))


def zeros(nbytes: int, declared: int | None) -> bytes:
    """A zstd frame of many zeros that declares another number of them, or none; its checksum is correct."""
    frame = bytes(zstd.compress(bytes(nbytes), 1))
    width, single = (0, 2, 4, 8)[frame[4] >> 6], frame[4] >> 5 & 1
    blocks = frame[5 + (1 - single) + (width or single) :]
    window = b"\x88"  # as far as level 1 looks back for an input of this size
    header = b"\0" + window if declared is None else b"\x80" + window + struct.pack("<I", declared)
    data = frame[:4] + header + blocks
    return data + int(google_crc32c.value(data)).to_bytes(CHECKSUM_BYTES, "little")


@pytest.mark.parametrize("declared", [64 * MEBIBYTE, 2**31, 0, None])
def test_a_decompression_bomb_is_found_before_it_goes_off(tmp_path: Path, declared: int | None) -> None:
    """64 MiB in a few kB; as it was saved, all checksums are right."""
    data = zeros(64 * MEBIBYTE, declared)

    def with_bomb(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        frames, *rest = encoded(spec, lane, position)
        return (data if position == 2 else frames, *rest)

    root = tmp_path / "replay"
    snapshot = Ring(capacity=20, spec=FRAMES, data=with_bomb).arrive(30).snapshot()
    assert sum(c.position == 2 for c in snapshot.chunks) == 3
    saved(root, snapshot)
    with little_memory():
        found = outcomes(root)
        assert "fields/observation/image has" in found["load"]
        assert found["export"] == found["load"]
        store = LocalStore(root)
        loaded = load_replay(store, Manifest.read(store, 1), on_damage="drop")
    assert loaded.lost_chunks == 3
    assert not any(chunk.position == 2 for chunk in loaded.snapshot.chunks)


def test_a_frame_that_is_larger_than_it_declares_is_found_when_it_is_decoded(tmp_path: Path) -> None:
    data = zeros(64 * MEBIBYTE, declared=3 * 84 * 84)

    def lying(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        frames, *rest = encoded(spec, lane, position)
        return (data if position == 2 else frames, *rest)

    root = tmp_path / "replay"
    store = saved(root, Ring(capacity=20, spec=FRAMES, data=lying).arrive(30).snapshot())
    with little_memory():
        (health,) = verify_checkpoints(store)
        assert len(health.segments[0].problems) == 3
        assert all("cannot be decompressed" in problem for problem in health.segments[0].problems)
        with pytest.raises(CheckpointError, match=r"cannot be decoded|holds no|whole"):
            export_minari(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_chunks_that_cannot_be_of_one_replay_are_damage(tmp_path: Path) -> None:
    chunks = Ring(capacity=6).arrive(30).snapshot().chunks
    for number, (changed, message) in enumerate(
        [
            (
                (*chunks[:-1], replace(chunks[-1], lane=chunks[0].lane, position=chunks[0].position)),
                "same place of a lane",
            ),
            ((*chunks[:-1], replace(chunks[-1], position=2**31)), "enormous lane or position"),
            ((*chunks[:-1], replace(chunks[-1], lane=-1)), "negative"),
            ((*chunks[:-1], replace(chunks[-1], data=chunks[-1].data[:3])), "too many or too few"),
        ]
    ):
        store = forged(tmp_path / str(number), changed)
        with pytest.raises(CheckpointDamaged, match=message):
            load_replay(store, Manifest.read(store, 1))


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("generation", lambda a: a[::-1].copy(), "do not ascend"),
        ("generation", lambda a: a - 10**6, "do not ascend"),
        ("priority", lambda a: np.where(a == a.max(), np.nan, a), "negative or not finite"),
        ("priority", lambda a: -a - 1, "negative or not finite"),
        ("first_chunk", lambda a: a[::-1].copy(), "not in its order"),
        ("first_chunk", lambda a: np.repeat(a[:1], len(a)), "not in its order"),
        ("first_chunk", lambda a: a + 3, "where none can begin"),
        ("first_chunk", lambda a: a + 10**15, "lack a chunk"),
    ],
)
def test_sequences_that_cannot_be_of_one_replay_are_damage(
    tmp_path: Path, column: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    snapshot = Ring(capacity=6).arrive(30).snapshot()
    table = replace(snapshot.sequences, **{column: change(getattr(snapshot.sequences, column))})
    store = forged(tmp_path, snapshot.chunks, table)
    with pytest.raises(CheckpointDamaged, match=message):
        load_replay(store, Manifest.read(store, 1))


def test_a_newer_replay_is_refused_by_name(tmp_path: Path) -> None:
    root = tmp_path / "replay"
    store = saved(root, Ring(capacity=6).arrive(30).snapshot())
    rewritten(root, lambda d: d["parts"]["replay"]["state"].update(version=2, spec="quite different"))
    with pytest.raises(CheckpointError, match=r"replay .* has format version 2.*upgrade seedflow") as caught:
        load_replay(store, Manifest.read(store, 1))
    assert not isinstance(caught.value, CheckpointDamaged)


def test_a_segment_of_another_replay_is_damage(tmp_path: Path) -> None:
    """Whole and sealed, but not what the manifest speaks of."""
    root = tmp_path / "replay"
    store = saved(root, Ring(capacity=6).arrive(30).snapshot())
    other = saved(tmp_path / "other", Ring(capacity=6).arrive(60).snapshot())
    (mine,), (theirs,) = (store.paths("segments"), other.paths("segments"))
    (root / mine).write_bytes(other.read(theirs))
    rewritten(root, lambda document: None)
    with pytest.raises(CheckpointDamaged, match=r"its chunks are not \d+ to \d+, in order"):
        load_replay(store, Manifest.read(store, 1))


def test_an_export_does_not_replace_what_is_there(tmp_path: Path) -> None:
    store = saved(tmp_path / "replay", Ring(capacity=6).arrive(30).snapshot())
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export_minari(store, tmp_path / "out")


def test_the_index_of_a_shard_must_be_in_order(tmp_path: Path) -> None:
    """All inner chunks at one place would multiply a small file."""
    root = tmp_path / "replay"
    store = saved(root, Ring(capacity=6).arrive(30).snapshot())
    part = ReplayPart.of(store, Manifest.read(store, 1))
    stored = StoredChunks(store, SPEC, part.segments[0], part.files)
    span = stored.files._spans[stored._arrays[0].data_path]
    path = root / part.segments[0].path
    data = bytearray(path.read_bytes())
    index = span.offset + span.size - 16 * len(stored.ids) - CHECKSUM_BYTES
    entries = np.frombuffer(bytes(data[index : span.offset + span.size - CHECKSUM_BYTES]), "<u8").copy()
    entries[0::2] = 0
    body = entries.tobytes()
    data[index : index + len(body)] = body
    data[index + len(body) : index + len(body) + 4] = int(google_crc32c.value(body)).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    rewritten(root, lambda document: None)
    with pytest.raises(CheckpointDamaged, match="does not fit the"):
        load_replay(store, Manifest.read(store, 1))

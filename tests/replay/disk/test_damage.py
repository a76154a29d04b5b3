"""Whatever happens to a file of a checkpoint: a named error, an older generation, or known chunks less."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from seedflow.checkpoints import Generations, LocalStore, Manifest
from seedflow.checkpoints.manifest import manifest_path
from seedflow.errors import CheckpointDamaged, CheckpointError
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.health import describe_replay, verify_checkpoints
from seedflow.replay.disk.load import LoadedReplay, OnDamage, load_replay
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.disk.segments import StoredChunks
from seedflow.replay.snapshot import Snapshot
from tests.replay.disk.ring import Ring, check_equal, check_part_of, save, tiny_ring

FORMS: list[Form] = ["zip", "directory"]
Damage = Callable[[bytes], bytes | None]


def two_generations(root: Path, form: Form, tiny: bool = False) -> dict[int, Snapshot]:
    """A replay saved twice; what each generation holds."""
    ring, counts = (tiny_ring(), (12, 3)) if tiny else (Ring(capacity=20), (100, 30))
    generations, saver = Generations(LocalStore(root)), ReplaySaver(form)
    snapshots = [ring.arrive(count).snapshot() for count in counts]
    return {save(generations, snapshot, saver): snapshot for snapshot in snapshots}


def flipped(position: int) -> Damage:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position % len(data)] ^= 1 << position % 8
        return bytes(changed)

    return damage


def damages(length: int, count: int) -> dict[str, Damage]:
    """Flips all over the file, cuts, and the loss of all of it."""
    positions = np.unique(np.linspace(0, max(0, length - 1), count).astype(int)).tolist()
    found: dict[str, Damage] = {f"flip {position}": flipped(position) for position in positions}
    found |= {
        "cut by one": lambda data: data[:-1],
        "cut in half": lambda data: data[: len(data) // 2],
        "empty": lambda data: b"",
        "gone": lambda data: None,
        "longer": lambda data: data + b"\0",
        "zeros": lambda data: bytes(len(data)),
    }
    return found


def restore(root: Path, on_damage: OnDamage) -> tuple[int, LoadedReplay, tuple[str, ...]]:
    store = LocalStore(root)
    found = Generations(store).restore(lambda manifest: load_replay(store, manifest, on_damage=on_damage))
    return found.manifest.generation, found.value, found.skipped


def check_restored(root: Path, expected: dict[int, Snapshot], on_damage: OnDamage) -> str:
    """Restore; what is found is right, and what is not found is said."""
    message = None
    try:
        generation, loaded, skipped = restore(root, on_damage)
    except CheckpointError as error:
        message = str(error)
    if message is not None:
        assert str(root) in message
        return "error"
    if not skipped and not loaded.problems:
        check_equal(loaded.snapshot, expected[generation])
        assert generation == max(expected)
        return "as it was"
    assert generation == max(expected) - len(skipped)
    assert all(str(root) in reason for reason in skipped)
    check_part_of(loaded.snapshot, expected[generation])
    lost = len(expected[generation].sequences) - len(loaded.snapshot.sequences)
    assert loaded.lost_sequences == lost
    assert lost == 0 or on_damage == "drop"
    if lost:
        return "dropped"
    return "older" if skipped else "as it was"


@pytest.mark.parametrize("form", FORMS)
def test_damage_to_any_file_is_never_wrong_data(tmp_path: Path, form: Form) -> None:
    expected = two_generations(tmp_path / "whole", form, tiny=form == "directory")
    root, outcomes = tmp_path / "damaged", set()
    files = LocalStore(tmp_path / "whole").paths()
    shutil.copytree(tmp_path / "whole", root)
    for path in files:
        data = (root / path).read_bytes()
        for name, damage in damages(len(data), count=12 if form == "zip" else 2).items():
            changed = damage(data)
            if changed == data:
                continue
            (root / path).unlink()
            if changed is not None:
                (root / path).write_bytes(changed)
            there = {n: s for n, s in expected.items() if (root / manifest_path(n)).exists()}
            for on_damage in ("error", "drop"):
                # Without its manifest a generation was never committed; there is nothing to report.
                outcome = check_restored(root, there, on_damage)  # type: ignore[arg-type]
                outcomes.add((path.partition("/")[0], on_damage, outcome))
            if name in ("flip 0", "gone") and form == "zip" and len(there) == 2:
                assert not all(health.whole for health in verify_checkpoints(LocalStore(root))), path
            (root / path).write_bytes(data)
    assert ("manifests", "error", "older") in outcomes
    assert ("sequences", "drop", "older") in outcomes, "the table cannot be dropped"
    assert ("segments", "error", "error") in outcomes, "the first segment belongs to both"
    assert ("segments", "error", "older") in outcomes
    assert ("segments", "drop", "dropped") in outcomes
    assert ("segments", "drop", "error") not in outcomes
    check_equal(restore(root, "error")[1].snapshot, expected[2])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_damage_to_any_byte_is_never_wrong_data(tmp_path: Path) -> None:
    snapshot, root = tiny_ring().arrive(10).snapshot(), tmp_path / "replay"
    save(Generations(LocalStore(root)), snapshot)
    for path in LocalStore(root).paths():
        data = (root / path).read_bytes()
        for position in range(len(data)):
            (root / path).write_bytes(flipped(position)(data))
            assert check_restored(root, {1: snapshot}, "error") == "error", (path, position)
            check_restored(root, {1: snapshot}, "drop")
        (root / path).write_bytes(data)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", [0, 3, 8], ids=["image", "flag", "state"])
def test_a_damaged_chunk_costs_its_sequences_and_no_other(tmp_path: Path, form: Form, column: int) -> None:
    expected = two_generations(tmp_path, form)[2]
    store = LocalStore(tmp_path)
    part = ReplayPart.of(store, Manifest.read(store, 2))
    stored = StoredChunks(store, part.spec, part.segments[0], part.files)
    used = {chunk.id for chunk in expected.chunks}
    begins = stored.sizes[-1] >= 0
    row = next(r for r in range(len(stored.ids)) if int(stored.ids[r]) in used and begins[r] and r > 10)
    begin = int(np.maximum(stored.sizes[column, :row], 0).sum())
    array = stored._arrays[column]
    begin += stored.files._spans[array.data_path].offset
    path = tmp_path / (
        part.segments[0].path if form == "zip" else f"{part.segments[0].path}/{array.data_path}"
    )
    path.write_bytes(flipped_at(path.read_bytes(), begin + int(stored.sizes[column, row]) // 2))

    with pytest.raises(CheckpointDamaged, match=rf"chunk {stored.ids[row]}: .* has a wrong checksum"):
        load_replay(store, Manifest.read(store, 2))
    loaded = load_replay(store, Manifest.read(store, 2), on_damage="drop")
    assert loaded.lost_chunks == 1
    chunk = next(chunk for chunk in expected.chunks if chunk.id == stored.ids[row])
    length = expected.spec.chunks_per_sequence
    by_id = {chunk.id: chunk for chunk in expected.chunks}
    touched = [
        generation
        for generation, first in zip(
            expected.sequences.generation.tolist(), expected.sequences.first_chunk.tolist(), strict=True
        )
        if by_id[first].lane == chunk.lane and 0 <= chunk.position - by_id[first].position < length
    ]
    assert touched
    found = loaded.snapshot.sequences.generation.tolist()
    assert found == [g for g in expected.sequences.generation.tolist() if g not in touched]
    assert loaded.lost_sequences == len(touched)
    check_part_of(loaded.snapshot, expected)
    assert any(f"chunk {chunk.id}: " in problem for problem in loaded.problems)
    newest, _ = verify_checkpoints(store)
    report = newest.segments[0]
    assert any(f"chunk {chunk.id}: " in problem for problem in report.problems)
    assert describe_replay(store).generation == 2, "which does not read chunks"


def flipped_at(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 64]) + data[position + 1 :]


def test_a_lost_segment_costs_its_sequences_and_no_other(tmp_path: Path) -> None:
    expected = two_generations(tmp_path, "zip")[2]
    store = LocalStore(tmp_path)
    part = ReplayPart.of(store, Manifest.read(store, 2))
    kept = set(StoredChunks(store, part.spec, part.segments[1], part.files).ids.tolist())
    store.delete(part.segments[0].path)
    loaded = load_replay(store, Manifest.read(store, 2), on_damage="drop")
    assert {chunk.id for chunk in loaded.snapshot.chunks} <= kept
    assert loaded.lost_sequences == 20 - len(loaded.snapshot.sequences) > 0
    assert len(loaded.snapshot.sequences) > 0
    check_part_of(loaded.snapshot, expected)
    report = describe_replay(store)
    assert [bool(segment.problems) for segment in report.segments] == [True, False]
    assert "is missing" in report.segments[0].problems[0]
    assert report.problems == (f"{loaded.lost_sequences} of 20 sequences lack a chunk",)


def test_segments_that_are_not_read_may_be_damaged(tmp_path: Path) -> None:
    """With room for the newest alone, the others are none of its business."""
    expected = two_generations(tmp_path, "zip")[2]
    store = LocalStore(tmp_path)
    part = ReplayPart.of(store, Manifest.read(store, 2))
    path = tmp_path / part.segments[0].path
    stored = StoredChunks(store, part.spec, part.segments[0], part.files)
    span = stored.files._spans[stored._arrays[0].data_path]
    path.write_bytes(flipped_at(path.read_bytes(), span.offset + span.size // 8))
    loaded = load_replay(store, Manifest.read(store, 2), capacity=2)
    assert loaded.left_out == 18
    check_part_of(loaded.snapshot, expected)


def test_what_is_left_of_a_damaged_segment_is_written_anew(tmp_path: Path) -> None:
    """Else every generation to come would be damaged, too."""
    two_generations(tmp_path, "zip")
    store = LocalStore(tmp_path)
    path = tmp_path / ReplayPart.of(store, Manifest.read(store, 2)).segments[0].path
    path.write_bytes(flipped_at(path.read_bytes(), path.stat().st_size // 2))
    generations = Generations(store)
    restored = generations.restore(lambda manifest: load_replay(store, manifest, on_damage="drop"))
    assert restored.value.damaged == (f"segments/{path.name}",)
    generations.go_on_from(restored.manifest)
    save(generations, restored.value.snapshot, ReplaySaver(avoid=restored.value.damaged))
    generation, loaded, skipped = restore(tmp_path, "error")
    assert (generation, skipped) == (3, ())
    check_equal(loaded.snapshot, restored.value.snapshot)

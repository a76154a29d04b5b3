"""What is saved is loaded, whatever state the replay is in; a save costs what is new."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.checkpoints import BackgroundSave, Generations, LocalStore, Manifest, Store
from seedflow.checkpoints.manifest import manifest_path
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointDamaged, CheckpointError
from seedflow.replay.codec import encode
from seedflow.replay.disk import save as saving
from seedflow.replay.disk import segments
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.load import load_replay
from seedflow.replay.disk.part import REPLAY, ReplayPart
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from seedflow.specs import ArraySpec
from tests.replay.disk.ring import FIELDS, SPEC, STATE, Ring, check_equal, check_part_of, load, save, saved

FORMS: list[Form] = ["zip", "directory"]


def part_of(store: Store, generation: int) -> ReplayPart:
    return ReplayPart.of(store, Manifest.read(store, generation))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("arrived", "sequences"),
    [(0, 0), (6, 0), (7, 1), (60, 27), (61, 28), (500, 28)],
    ids=["empty", "chunks but no sequence", "one sequence", "nearly full", "exactly full", "wrapped"],
)
def test_every_state_of_a_replay_is_the_same_after_a_round_trip(
    tmp_path: Path, form: Form, arrived: int, sequences: int
) -> None:
    snapshot = Ring(capacity=28).arrive(arrived).snapshot()
    assert len(snapshot.sequences) == sequences
    check_equal(load(saved(tmp_path, snapshot, form)).snapshot, snapshot)


def test_a_replay_of_one_chunk_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    spec = ReplaySpec(FIELDS, STATE, chunk=2, burn_in=0, unroll=2, period=2)
    snapshot = Ring(capacity=4, spec=spec).arrive(1).snapshot()
    assert (len(snapshot.chunks), len(snapshot.sequences)) == (1, 1)
    check_equal(load(saved(tmp_path, snapshot)).snapshot, snapshot)


def test_incompressible_frames_take_their_raw_size_and_little_more(tmp_path: Path) -> None:
    frame = ArraySpec("observation", (40, 40), np.dtype("uint8"))
    spec = ReplaySpec((frame,), (), chunk=4, burn_in=0, unroll=4, period=4)

    def noise(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        random = np.random.default_rng([lane, position])
        return (encode(random.integers(0, 256, (5, 40, 40)).astype(np.uint8), compress=True),)

    snapshot = Ring(capacity=50, spec=spec, data=noise).arrive(50).snapshot()
    store = saved(tmp_path, snapshot)
    check_equal(load(store).snapshot, snapshot)
    raw = len(snapshot.chunks) * spec.raw_bytes()
    assert raw < store.size(part_of(store, 1).segments[0].path) < raw * 1.01 + 10_000


@pytest.mark.parametrize("url", ["memory", "file"])
@pytest.mark.parametrize("form", FORMS)
def test_other_stores_hold_it_as_well(tmp_path: Path, url: str, form: Form) -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}" if url == "memory" else f"file://{tmp_path}")
    ring, saver, generations = Ring().arrive(60), ReplaySaver(form), Generations(store)
    save(generations, ring.snapshot(), saver)
    snapshot = ring.arrive(10).snapshot()
    save(generations, snapshot, saver)
    check_equal(load(store).snapshot, snapshot)


def test_another_directory_holds_it_as_well(tmp_path: Path) -> None:
    snapshot = Ring().arrive(60).snapshot()
    saved(tmp_path / "here", snapshot)
    (tmp_path / "here").rename(tmp_path / "there")
    check_equal(load(LocalStore(tmp_path / "there")).snapshot, snapshot)


@pytest.mark.parametrize("form", FORMS)
def test_a_save_writes_what_is_new_and_no_chunk_twice(tmp_path: Path, form: Form) -> None:
    store = LocalStore(tmp_path)
    ring, saver, generations = Ring(capacity=1000).arrive(3000), ReplaySaver(form), Generations(store)
    save(generations, ring.snapshot(), saver)
    known = {chunk.id for chunk in ring.snapshot().chunks}
    for arrived in (30, 150):
        before = set(store.paths())
        snapshot = ring.arrive(arrived).snapshot()
        generation = save(generations, snapshot, saver)
        new = set(store.paths()) - before - {manifest_path(generation)}
        table = part_of(store, generation).table
        written = sum(store.size(path) for path in new if not path.startswith(table))
        encoded = sum(len(array) for c in snapshot.chunks if c.id not in known for array in c.data)
        assert encoded > 8000
        index = arrived * (3 * 8 + len(SPEC.arrays) * 16)
        assert encoded < written < encoded + index + 20_000, "the data, its index, the metadata of a segment"
        check_equal(load(store).snapshot, snapshot)
        known |= {chunk.id for chunk in snapshot.chunks}


def test_a_save_with_nothing_new_writes_the_table_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    snapshot, saver, generations = Ring().arrive(60).snapshot(), ReplaySaver(), Generations(store)
    save(generations, snapshot, saver)
    changed = replace(
        snapshot, sequences=replace(snapshot.sequences, priority=snapshot.sequences.priority + 1)
    )
    save(generations, changed, saver)
    assert part_of(store, 1).segments == part_of(store, 2).segments
    check_equal(load(store).snapshot, changed)


def test_segments_without_a_chunk_of_use_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ring, saver, generations = Ring(capacity=10), ReplaySaver(), Generations(store, keep=2)
    for _ in range(30):
        save(generations, ring.arrive(10).snapshot(), saver)
    check_equal(load(store).snapshot, ring.snapshot())
    named = {segment.path for n in (29, 30) for segment in part_of(store, n).segments}
    assert set(store.paths("segments")) == named
    assert len(named) < 8


def test_many_small_segments_become_fewer(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ring, saver, generations = Ring(capacity=500), ReplaySaver(), Generations(store, keep=2)
    most = 0
    for _ in range(saving.MAX_SMALL * 3):
        save(generations, ring.arrive(7).snapshot(), saver)
        most = max(most, len(part_of(store, generations.numbers()[-1]).segments))
    assert most == saving.MAX_SMALL + 1
    check_equal(load(store).snapshot, ring.snapshot())
    ages = [segment.created for segment in part_of(store, generations.numbers()[-1]).segments]
    assert min(ages) < Manifest.read(store, generations.numbers()[-2]).created, "the oldest chunk counts"


def test_a_segment_holds_a_limited_number_of_chunks_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Ring(capacity=20).arrive(300).snapshot()
    monkeypatch.setattr(segments, "MAX_CHUNKS", 10)
    store = saved(tmp_path / "chunks", snapshot)
    assert [segment.chunks for segment in part_of(store, 1).segments] == [10] * 4 + [3]
    check_equal(load(store).snapshot, snapshot)
    one = sum(map(len, snapshot.chunks[0].data))
    monkeypatch.setattr(segments, "MAX_BYTES", one * 3)
    store = saved(tmp_path / "bytes", snapshot)
    assert max(segment.chunks for segment in part_of(store, 1).segments) == 3
    monkeypatch.setattr(segments, "MAX_BYTES", 1)
    store = saved(tmp_path / "single", snapshot)
    assert {segment.chunks for segment in part_of(store, 1).segments} == {1}
    check_equal(load(store).snapshot, snapshot)


def test_a_resumed_run_saves_what_is_new_since_then(tmp_path: Path) -> None:
    """The chunks of the generation that was restored are known from its segments."""
    store = LocalStore(tmp_path)
    ring = Ring(capacity=100).arrive(300)
    save(Generations(store), ring.snapshot())
    generations = Generations(store)
    restored = generations.restore(lambda manifest: load_replay(store, manifest))
    generations.go_on_from(restored.manifest)
    snapshot = ring.arrive(10).snapshot()
    save(generations, snapshot, ReplaySaver())
    assert set(part_of(store, 1).segments) < set(part_of(store, 2).segments)
    check_equal(load(store).snapshot, snapshot)


def test_after_going_back_the_new_chunks_count_not_those_of_the_same_number(tmp_path: Path) -> None:
    """The generation that was skipped has chunks of the same ids and other content."""
    store = LocalStore(tmp_path)
    ring = Ring(capacity=100).arrive(100)
    generations, saver = Generations(store), ReplaySaver()
    save(generations, ring.snapshot(), saver)
    other = replace(ring, open=[list(lane) for lane in ring.open], sequences=list(ring.sequences))
    save(generations, other.arrive(50).snapshot(), saver)
    store.delete(part_of(store, 2).table)

    resumed = Generations(store)
    restored = resumed.restore(lambda manifest: load_replay(store, manifest))
    assert restored.manifest.generation == 1
    resumed.go_on_from(restored.manifest)
    for number in range(ring.lanes):
        ring.end_lane(number)
    snapshot = ring.arrive(50).snapshot()
    assert save(resumed, snapshot, ReplaySaver()) == 3
    check_equal(load(store).snapshot, snapshot)


def test_a_segment_that_has_become_unreadable_is_written_anew(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ring = Ring(capacity=100).arrive(300)
    save(Generations(store), ring.snapshot())
    generations = Generations(store)
    generations.go_on_from(generations.restore(lambda manifest: manifest).manifest)
    (tmp_path / part_of(store, 1).segments[0].path).write_bytes(b"")
    save(generations, ring.snapshot(), ReplaySaver())
    check_equal(load(store).snapshot, ring.snapshot())


def test_the_form_may_change_between_two_saves(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ring, generations = Ring(capacity=100).arrive(100), Generations(store)
    for form in ("zip", "directory", "zip"):
        save(generations, ring.arrive(50).snapshot(), ReplaySaver(form))
        check_equal(load(store).snapshot, ring.snapshot())
    forms = {segment.path.rpartition(".")[2] for segment in part_of(store, 3).segments}
    assert forms == {"zip", "zarr"}


def test_saving_goes_on_beside_a_replay_that_changes(tmp_path: Path) -> None:
    generations, saver, ring, saving_now = (
        Generations(LocalStore(tmp_path)),
        ReplaySaver(),
        Ring(),
        BackgroundSave(),
    )
    expected = []
    for _ in range(5):
        snapshot = ring.arrive(20).snapshot()
        expected.append(snapshot)
        saving_now.start(lambda snapshot=snapshot: save(generations, snapshot, saver))  # type: ignore[misc]
        ring.arrive(20)
        assert saving_now.result() == len(expected)
    check_equal(load(generations.store).snapshot, expected[-1])


@pytest.mark.parametrize("capacity", [0, 1, 14, 28, 56])
def test_the_newest_that_there_is_room_for_are_read(tmp_path: Path, capacity: int) -> None:
    whole = Ring(capacity=28).arrive(300).snapshot()
    loaded = load(saved(tmp_path, whole), capacity=capacity)
    found = loaded.snapshot
    count = min(capacity, 28)
    assert found.sequences.generation.tolist() == whole.sequences.generation[28 - count :].tolist()
    assert found.sequences.priority.tolist() == whole.sequences.priority[28 - count :].tolist()
    assert loaded.left_out == 28 - count
    assert loaded.problems == ()
    check_part_of(found, whole)
    assert found.state == whole.state


def test_as_much_is_read_as_memory_holds(tmp_path: Path) -> None:
    whole = Ring(capacity=28).arrive(300).snapshot()
    store = saved(tmp_path, whole)
    nbytes = sum(chunk.nbytes for chunk in whole.chunks)
    check_equal(load(store, max_bytes=nbytes).snapshot, whole)
    previous = 29
    for limit in (nbytes - 1, nbytes // 2, 5000, 0):
        loaded = load(store, max_bytes=limit)
        found = loaded.snapshot
        check_part_of(found, whole)
        assert sum(chunk.nbytes for chunk in found.chunks) <= limit
        assert len(found.sequences) == 28 - loaded.left_out < previous
        if loaded.left_out:
            before = load(store, capacity=len(found.sequences) + 1).snapshot
            assert sum(chunk.nbytes for chunk in before.chunks) > limit, "one more would not have fitted"
        previous = len(found.sequences)
    assert len(load(store, max_bytes=0, capacity=3).snapshot.sequences) == 0


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            replace(SPEC, fields=(ArraySpec("observation/image", (6, 30), np.dtype("uint8")), *FIELDS[1:])),
            r"observation/image: uint8 \(6, 30\) here, uint8 \(5, 30\) there",
        ),
        (
            replace(SPEC, fields=(*FIELDS[:2], ArraySpec("reward", (), np.dtype("float64")), *FIELDS[3:])),
            r"reward: float64 \(\) here, float32 \(\) there",
        ),
        (replace(SPEC, state=STATE[:1]), r"stack: absent here, uint8 \(3, 7\) there"),
        (replace(SPEC, burn_in=4), "burn_in: 4 here, 2 there"),
    ],
)
def test_another_spec_is_refused_before_anything_is_read(
    tmp_path: Path, other: ReplaySpec, difference: str
) -> None:
    store = saved(tmp_path, Ring().arrive(60).snapshot())
    for path in store.paths("segments") + store.paths("sequences"):
        (tmp_path / path).write_bytes(b"not looked at")
    with pytest.raises(CheckpointError, match=difference) as caught:
        load(store, spec=other)
    assert not isinstance(caught.value, CheckpointDamaged)
    with pytest.raises(CheckpointDamaged):
        load(store, spec=SPEC)


def test_a_generation_without_replay_says_so(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with Generations(store).draft() as draft:
        draft.commit({})
    with pytest.raises(CheckpointError, match=r"generation 1 in .* holds no replay"):
        load(store)


def test_what_a_checkpoint_cannot_hold_is_named_when_it_is_saved(tmp_path: Path) -> None:
    huge = ArraySpec("observation", (4096, 4096, 4), np.dtype("uint8"))
    nothing = ArraySpec("observation", (0, 4), np.dtype("uint8"))
    nested = ArraySpec("observation/image", (2,), np.dtype("uint8"))
    flat = ArraySpec("observation", (2,), np.dtype("uint8"))
    for fields, message in (
        ((huge,), "more than the 268435456 that a checkpoint can hold; make"),
        ((nothing,), r"observation has shape \(1, 5, 0, 4\)"),
        ((flat, nested), "fields/observation would hold other arrays"),
    ):
        spec = ReplaySpec(fields, (), chunk=4, burn_in=0, unroll=4, period=4)
        with pytest.raises(CheckpointError, match=message):
            saved(tmp_path, Ring(spec=spec).snapshot())


NAMES = st.lists(
    st.text(max_size=4) | st.sampled_from(["..", ".", "c", "zarr.json", "__x", "-", ""]), max_size=3
)


@given(NAMES, st.sampled_from(FORMS))
@settings(max_examples=25)
def test_any_name_of_an_observation_is_kept(names: list[str], form: Form) -> None:
    name = "/".join(["observation", *names])
    leaf = ArraySpec(name, (2,), np.dtype("float32"))
    spec = ReplaySpec((leaf,), (), chunk=1, burn_in=0, unroll=1, period=1)

    def zeros(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        return (encode(np.full((2, 2), position, np.float32), compress=False),)

    snapshot = Ring(spec=spec, data=zeros).arrive(5).snapshot()
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    save(Generations(store), snapshot, ReplaySaver(form))
    check_equal(load(store).snapshot, snapshot)


@given(st.data())
@settings(max_examples=10)
def test_any_history_of_a_replay_is_restored_as_it_was(data: st.DataObject) -> None:
    """Chunks arrive, lanes end, saves succeed, runs resume with other capacities."""
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    ring = Ring(
        capacity=data.draw(st.integers(1, 30), "capacity"), lanes=data.draw(st.integers(1, 4), "lanes")
    )
    generations, saver = Generations(store, keep=2), ReplaySaver(data.draw(st.sampled_from(FORMS), "form"))
    for _ in range(data.draw(st.integers(1, 6), "saves")):
        ring.arrive(data.draw(st.integers(0, 40), "chunks"))
        if data.draw(st.booleans(), "a lane ends"):
            ring.end_lane(data.draw(st.integers(0, ring.lanes - 1), "which"))
        save(generations, ring.snapshot(), saver)
        check_equal(load(store).snapshot, ring.snapshot())
        if data.draw(st.booleans(), "resume"):
            generations, saver = Generations(store, keep=2), ReplaySaver()
            restored = generations.restore(lambda manifest: load_replay(store, manifest))
            generations.go_on_from(restored.manifest)
    capacity = data.draw(st.integers(0, 40), "new capacity")
    check_part_of(load(store, capacity=capacity).snapshot, ring.snapshot())
    assert (
        part_of(store, generations.numbers()[-1]).to_part()
        == Manifest.read(store, generations.numbers()[-1]).parts[REPLAY]
    )

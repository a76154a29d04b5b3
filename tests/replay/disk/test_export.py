"""Whole episodes of a replay become a Minari dataset, without loss."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import minari
import numpy as np
import pytest
from click.testing import CliRunner

from seedflow.checkpoints import Generations, LocalStore
from seedflow.cli import cli
from seedflow.errors import CheckpointError, ConfigError
from seedflow.replay.codec import encode
from seedflow.replay.disk import export
from seedflow.replay.disk.export import export_minari, find_episodes
from seedflow.replay.disk.part import REPLAY
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from seedflow.specs import ArraySpec, EnvSpec
from tests.replay.disk.ring import Ring, saved

LENGTHS = (3, 7, 1, 4, 30, 2)
"""Transitions of the episodes of a lane, one after the other, again and again."""


def make_spec(leaves: dict[str, tuple[tuple[int, ...], str]], period: int = 4) -> ReplaySpec:
    fields = [ArraySpec(name, shape, np.dtype(dtype)) for name, (shape, dtype) in leaves.items()]
    fields += [
        ArraySpec("reward", (), np.dtype("float32")),
        ArraySpec("terminated", (), np.dtype("bool")),
        ArraySpec("truncated", (), np.dtype("bool")),
        ArraySpec("first", (), np.dtype("bool")),
        ArraySpec("action", (), np.dtype("int64")),
        ArraySpec("value", (), np.dtype("float32")),
    ]
    return ReplaySpec(tuple(fields), (), chunk=4, burn_in=4, unroll=8, period=period)


LEAVES = {"observation": ((40, 40, 3), "uint8")}


@cache
def rows(spec: ReplaySpec, lane: int, count: int) -> dict[str, np.ndarray]:
    """All indices of a lane: episodes with NEXT_STEP autoreset, whose values tell where they belong."""
    ends = np.cumsum(np.resize(np.array(LENGTHS) + 1, count))
    ends = ends[ends <= count * 2]
    index = np.arange(count)
    last = np.isin(index + 1, ends)
    first = np.isin(index, np.append(0, ends))
    # Every other episode is cut off by a time limit.
    number = np.searchsorted(ends, index, side="right")
    found: dict[str, np.ndarray] = {
        "reward": np.where(first, 0, index + lane / 8).astype(np.float32),
        "terminated": last & (number % 2 == 0),
        "truncated": last & (number % 2 == 1),
        "first": first,
        "action": (index * 7 + lane) % 6,
        "value": (index / 3).astype(np.float32),
    }
    for array in spec.fields:
        if array.name.startswith("observation"):
            random = np.random.default_rng([lane, len(array.name)])
            high = 2 if array.dtype == bool else 100
            found[array.name] = random.integers(0, high, (count, *array.shape)).astype(array.dtype)
    return found


def episodes_ring(spec: ReplaySpec, capacity: int, chunks: int, lanes: int = 2) -> Ring:
    def data(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        begin = position * spec.chunk
        values = rows(spec, lane, 400)
        return tuple(
            encode(values[array.name][begin : begin + spec.rows], spec.compressed(array))
            for array in spec.fields
        )

    return Ring(capacity=capacity, lanes=lanes, spec=spec, data=data).arrive(chunks)


def expected_episodes(ring: Ring) -> dict[tuple[int, int], tuple[int, int]]:
    """First and last index of each episode that is there in full, by lane and first index."""
    spec, found = ring.spec, {}
    chunks = ring.snapshot().chunks
    for lane in {chunk.lane for chunk in chunks}:
        positions = [chunk.position for chunk in chunks if chunk.lane == lane]
        begin, end = min(positions) * spec.chunk, (max(positions) + 1) * spec.chunk + spec.bootstrap
        values = rows(spec, lane, 400)
        for first, after in pairwise([*np.flatnonzero(values["first"]).tolist(), 10**9]):
            # That the next one begins is not seen at the end of the lane, but a time limit is an end anyway.
            whole = after < end or (after == end and values["truncated"][after - 1])
            if begin <= first and whole:
                found[lane, first] = (first, after - 1)
    return found


def check_dataset(out: Path, ring: Ring, start: int = 0) -> Any:
    dataset = minari.MinariDataset(out)
    expected = expected_episodes(ring)
    assert dataset.total_episodes == len(expected) > 4
    for episode, ((lane, _), (begin, end)) in zip(dataset, sorted(expected.items()), strict=True):
        values = rows(ring.spec, lane, 400)
        assert (episode.rewards == values["reward"][begin + 1 : end + 1]).all()
        assert (episode.terminations == values["terminated"][begin + 1 : end + 1]).all()
        assert (episode.truncations == values["truncated"][begin + 1 : end + 1]).all()
        assert (episode.actions == values["action"][begin:end] + start).all()
        assert (episode.infos["value"] == values["value"][begin : end + 1]).all()
        assert episode.rewards.dtype == np.float32
        assert episode.terminations[:-1].sum() + episode.truncations[:-1].sum() == 0
        assert episode.terminations[-1] or episode.truncations[-1]
        for name in values:
            if name.startswith("observation"):
                found = episode.observations
                for key in name.split("/")[1:]:
                    found = found[key]
                assert found.dtype == values[name].dtype, name
                assert (found == values[name][begin : end + 1]).all(), name
    return dataset


@pytest.mark.parametrize("period", [4, 8], ids=["chunks alone", "chunks with a bootstrap row"])
def test_images_are_kept_bit_for_bit(tmp_path: Path, period: int) -> None:
    """Minari would make JPEGs of them by default."""
    ring = episodes_ring(make_spec(LEAVES, period), capacity=30, chunks=100)
    store = saved(tmp_path / "replay", ring.snapshot())
    done = export_minari(store, tmp_path / "catch")
    dataset = check_dataset(tmp_path / "catch", ring)
    assert done.episodes == dataset.total_episodes
    assert done.transitions == dataset.total_steps
    assert done.incomplete >= 2, "each lane begins and ends within one"
    assert dataset.spec.dataset_id == "catch-v0"
    assert dataset.observation_space.dtype == np.uint8
    assert dataset.storage.jpeg_encoding is False
    assert dataset.action_space.n == 6


def test_nested_observations_of_all_dtypes_are_kept(tmp_path: Path) -> None:
    leaves = {
        "observation/image": ((40, 40), "uint8"),
        "observation/inner/speed": ((2,), "float16"),
        "observation/inner/flag": ((), "bool"),
        "observation/0": ((3,), "int16"),
    }
    ring = episodes_ring(make_spec(leaves), capacity=30, chunks=60)
    export_minari(saved(tmp_path / "replay", ring.snapshot()), tmp_path / "nested-v3")
    dataset = check_dataset(tmp_path / "nested-v3", ring)
    assert dataset.spec.dataset_id == "nested-v3"
    assert set(dataset.observation_space["inner"]) == {"speed", "flag"}


def test_actions_are_those_of_the_environment(tmp_path: Path) -> None:
    ring = episodes_ring(make_spec(LEAVES), capacity=30, chunks=60)
    env = EnvSpec((ArraySpec("observation", (40, 40, 3), np.dtype("uint8")),), num_actions=9, action_start=-2)
    store = LocalStore(tmp_path / "replay")
    with Generations(store).draft() as draft:
        draft.add(REPLAY, ReplaySaver().write(draft, ring.snapshot()))
        draft.commit({"spec": env.to_json()})
    export_minari(store, tmp_path / "out")
    dataset = check_dataset(tmp_path / "out", ring, start=-2)
    assert (dataset.action_space.n, dataset.action_space.start) == (9, -2)


def test_a_life_that_is_lost_ends_no_episode() -> None:
    """`terminated` without a `first` behind it; at the end of what is there nobody knows."""
    spec = make_spec({"observation": ((2,), "float32")})
    flags = {"first": [0, 9], "terminated": [4, 8, 11], "truncated": []}

    def data(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        found = []
        for array in spec.fields:
            values = np.zeros((12, *array.shape), array.dtype)
            if array.name in flags:
                values[flags[array.name]] = True
            found.append(encode(values[position * 4 : position * 4 + 4], compress=False))
        return tuple(found)

    snapshot = Ring(capacity=5, lanes=1, spec=spec, data=data).arrive(3).snapshot()
    episodes = list(find_episodes(snapshot))
    assert [(e.begin, e.end) for e in episodes if e is not None] == [(0, 8)]
    assert len(episodes) == 2
    flags["truncated"] = [11]
    snapshot = Ring(capacity=5, lanes=1, spec=spec, data=data).arrive(3).snapshot()
    assert [(e.begin, e.end, len(e.chunks)) for e in find_episodes(snapshot) if e] == [(0, 8, 3), (1, 3, 1)]


def test_the_command_prints_what_it_wrote(tmp_path: Path) -> None:
    ring = episodes_ring(make_spec(LEAVES), capacity=30, chunks=60)
    saved(tmp_path / "replay", ring.snapshot())
    arguments = [
        "replay",
        "export",
        str(tmp_path / "replay"),
        "--minari",
        str(tmp_path / "new" / "out"),
        "--json",
    ]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.output)["episodes"] == len(expected_episodes(ring))
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"], "nothing temporary is left"


def test_a_replay_without_episodes_is_named(tmp_path: Path) -> None:
    reward = ArraySpec("reward", (), np.dtype("float32"))
    spec = ReplaySpec((reward,), (), chunk=1, burn_in=0, unroll=1, period=1)
    store = saved(tmp_path / "replay", Ring(spec=spec).snapshot())
    with pytest.raises(CheckpointError, match=r"no fields \['first', 'terminated', 'truncated', 'action'\]"):
        export_minari(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_episode_too_large_for_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = episodes_ring(make_spec(LEAVES), capacity=30, chunks=60)
    store = saved(tmp_path / "replay", ring.snapshot())
    monkeypatch.setattr(export, "MAX_EPISODE_BYTES", 10_000)
    with pytest.raises(CheckpointError, match="more than the 10000 that are put together in memory"):
        export_minari(store, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replay"]


def test_without_minari_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "minari", None)
    with pytest.raises(ConfigError, match=r"pip install 'seedflow\[minari\]'"):
        export_minari(LocalStore(tmp_path), tmp_path / "out")

"""Geometry of sequences, and specs that travel as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seedflow.errors import CheckpointError, ConfigError
from seedflow.replay.layout import ReplaySpec
from seedflow.specs import ArraySpec

from .rig import FIELDS, STATE, make_spec


def test_r2d2s_sequences_overlap_by_two_thirds() -> None:
    spec = make_spec(chunk=40, burn_in=40, unroll=80, period=40)
    assert (spec.chunks_per_sequence, spec.length, spec.rows, spec.bootstrap) == (3, 120, 40, 0)
    assert [spec.begins(position) for position in range(4)] == [True, True, True, True]


def test_where_period_is_the_unroll_a_sequence_has_one_index_more() -> None:
    spec = make_spec(chunk=20, burn_in=40, unroll=80, period=80)
    assert (spec.chunks_per_sequence, spec.length, spec.rows, spec.bootstrap) == (6, 121, 21, 1)
    assert [position for position in range(9) if spec.begins(position)] == [0, 4, 8]


def test_large_observations_and_byte_states_are_compressed() -> None:
    def compressed(name: str, shape: tuple[int, ...], dtype: str, *, state: bool = False) -> bool:
        array, other = ArraySpec(name, shape, np.dtype(dtype)), ArraySpec("other", (), np.dtype("bool"))
        fields, states = ((other,), (array,)) if state else ((array,), (other,))
        return ReplaySpec(fields, states, 1, 0, 1, 1).compressed(array)

    assert compressed("observation", (84, 84), "uint8")
    assert compressed("observation/image", (17,), "float32")
    assert not compressed("observation/speed", (16,), "float32")
    assert not compressed("observations", (84, 84), "uint8")
    assert not compressed("q", (100,), "float32")
    assert compressed("stack", (2,), "uint8", state=True)
    assert not compressed("observation", (512,), "float32", state=True)


@pytest.mark.parametrize(
    ("geometry", "words"),
    [
        ({"chunk": 0}, "replay.chunk = 0: expected at least 1"),
        ({"burn_in": -2}, "replay.burn_in = -2: expected at least 0"),
        ({"burn_in": 3}, "replay.burn_in = 3 is not a multiple of replay.chunk = 2"),
        ({"unroll": 5}, "replay.unroll = 5 is not a multiple of replay.chunk = 2"),
        ({"period": 1}, "replay.period = 1 is not a multiple of replay.chunk = 2"),
        ({"period": 0}, "replay.period = 0: expected at least 1"),
    ],
)
def test_what_does_not_fit_is_refused(geometry: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_spec(**geometry)


def test_no_two_arrays_share_a_name() -> None:
    with pytest.raises(ConfigError, match="no name twice"):
        replace(make_spec(), state=(ArraySpec("index", (), np.dtype("int64")),))


def test_a_spec_survives_json() -> None:
    spec = make_spec()
    again = ReplaySpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.fingerprint() == spec.fingerprint() != make_spec(period=4).fingerprint()
    assert spec.describe_difference(again) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda j: j.pop("state"),
        lambda j: j.update(fields=None),
        lambda j: j.update(chunk=2.0),
        lambda j: j.update(chunk=0),
        lambda j: j.update(period=True),
        lambda j: j.update(unroll=2**40),
        lambda j: j["fields"][0].update(dtype="object"),
        lambda j: j["fields"][0].update(dtype=["uint8"]),
        lambda j: j["fields"][0].update(name=3),
        lambda j: j["fields"][0].update(shape=[-1]),
        lambda j: j["fields"][0].update(shape="84"),
        lambda j: j["fields"].append("observation"),
    ],
)
def test_json_that_is_no_spec_is_refused_by_name(damage: Any) -> None:
    value = make_spec().to_json()
    damage(value)
    with pytest.raises(CheckpointError, match="no description of a replay's arrays"):
        ReplaySpec.from_json(value)


@pytest.mark.parametrize("value", [None, 3, [], "spec", {"fields": []}])
def test_other_json_is_refused_by_name(value: Any) -> None:
    with pytest.raises(CheckpointError, match="no description of a replay's arrays"):
        ReplaySpec.from_json(value)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"fields": FIELDS[:2]}, "first: bool () here, absent there"),
        ({"state": (*STATE, ArraySpec("c", (2,), np.dtype("int8")))}, "c: absent here, int8 (2,) there"),
        ({"fields": FIELDS[::-1]}, "order of the arrays: observation, index, first here"),
        ({"burn_in": 4}, "burn_in: 2 here, 4 there"),
    ],
)
def test_the_first_difference_is_named(other: dict[str, Any], words: str) -> None:
    spec = make_spec()
    assert (spec.describe_difference(replace(spec, **other)) or "").startswith(words)

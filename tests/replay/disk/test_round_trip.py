"""What is saved is loaded, whatever state the replay is in; a save costs what is new."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seedflow.checkpoints import Generations, LocalStore, Manifest, Store
from seedflow.checkpoints.remote import FsspecStore
from seedflow.errors import CheckpointError
from seedflow.replay.disk import save as saving
from seedflow.replay.disk import segments
from seedflow.replay.disk.group import Form
from seedflow.replay.disk.part import REPLAY, ReplayPart
from seedflow.replay.disk.save import ReplaySaver
from seedflow.replay.layout import ReplaySpec
from tests.replay.disk.ring import FIELDS, SPEC, STATE, Ring, check_equal, check_part_of, load, save, saved

FORMS: list[Form] = ["zip", "directory"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "arrived",
    [0, 5, 3 * 3, 60, 500],
    ids=["empty", "chunks but no sequence", "first sequences", "exactly full", "wrapped"],
)
def test_every_state_of_a_replay_is_the_same_after_a_round_trip(
    tmp_path: Path, form: Form, arrived: int
) -> None:
    ring = Ring(capacity=28).arrive(arrived)
    snapshot = ring.snapshot()
    if arrived == 60:
        assert len(snapshot.sequences) == 28 == ring.next_sequence - 0 if ring.next_sequence == 28 else True
    check_equal(load(saved(tmp_path, snapshot, form)).snapshot, snapshot)

"""Saving in the background: one at a time, and no failure is lost."""

from __future__ import annotations

import threading

import pytest

from seedflow.checkpoints import BackgroundSave
from seedflow.errors import CheckpointError


def test_the_result_is_the_generation() -> None:
    saving, go = BackgroundSave(), threading.Event()

    def save() -> int:
        assert go.wait(60)
        return 5

    assert saving.result() is None
    saving.start(save)
    assert saving.busy
    with pytest.raises(RuntimeError, match="a save is being written"):
        saving.start(save)
    with pytest.raises(TimeoutError, match="still being written"):
        saving.result(timeout=0)
    go.set()
    assert saving.result() == 5
    assert not saving.busy
    saving.start(lambda: 6)
    assert saving.result() == 6


def test_a_failure_is_raised_by_who_asks() -> None:
    def save() -> int:
        raise CheckpointError("no space left")

    saving = BackgroundSave()
    saving.start(save)
    with pytest.raises(CheckpointError, match="no space left"):
        saving.result()
    assert saving.result() is None

"""A learner saves while it can, says so when it cannot, and shares its directory with nobody."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seedflow.checkpoints.syscalls import Syscalls
from seedflow.envs import probe_spec
from seedflow.errors import CheckpointConflict, CheckpointError
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.slab import BlockLayout, Slab
from tests.learner.rig import counting_config


@contextmanager
def idle_learner(run_dir: Path, said: list[str]) -> Iterator[Learner]:
    """A learner without actors that shall save at every opportunity."""
    config = counting_config(checkpoint={"every_seconds": 1e-9})
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
    table = lease_table(config, spec)
    with Slab(layout, table.blocks) as slab:
        learner = Learner(config, spec, InlineTransport(layout, slab, table), run_dir, said.append)
        try:
            yield learner
        finally:
            learner.close()


def full(fd: int, data: memoryview) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    with idle_learner(tmp_path, said) as learner:
        learner.save_if_due()
        with monkeypatch.context() as patch:
            patch.setattr(Syscalls, "write", staticmethod(full))
            learner.save_if_due()
            with pytest.raises(CheckpointError, match="No space left on device"):
                learner.save()  # as at the end of a run
        assert CheckpointStore(tmp_path / "checkpoints").generations() == [1]
        (complaint,) = [text for text in said if "without a new checkpoint" in text]
        assert "No space left on device" in complaint
        learner.save_if_due()
    assert len(CheckpointStore(tmp_path / "checkpoints").generations()) == 2


def test_a_second_learner_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with idle_learner(tmp_path, []) as learner:
        learner.save_if_due()
        with pytest.raises(CheckpointConflict, match="end that run first"), idle_learner(tmp_path, []):
            pass
        learner.save_if_due()
    with idle_learner(tmp_path, []) as learner:
        assert learner.restore() == 2


def test_another_writer_that_no_lock_kept_out_ends_the_run(tmp_path: Path) -> None:
    with idle_learner(tmp_path, []) as learner:
        learner.save_if_due()
        other = CheckpointStore(tmp_path / "checkpoints")
        other.save({}, {})
        with pytest.raises(CheckpointConflict, match="has committed generation 2"):
            learner.save_if_due()


def test_a_damaged_checkpoint_is_skipped_aloud(tmp_path: Path) -> None:
    with idle_learner(tmp_path, []) as learner:
        learner.save_if_due()
        learner.save_if_due()
    for file in (tmp_path / "checkpoints" / "tensors").glob("00000002-*"):
        file.write_bytes(b"")
    said: list[str] = []
    with idle_learner(tmp_path, said) as learner:
        assert learner.restore() == 1
    assert any(text.startswith("skipped generation 2: ") for text in said)

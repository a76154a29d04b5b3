"""Containers often have 64 MiB in /dev/shm, and other programs fill it: nothing of seedflow lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runs.rig import HERE, PROGRAM, Launcher, launcher, metrics

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, for a /dev/shm of its own"),
]

FULL = """
mount -t tmpfs -o size=64m tmpfs /dev/shm
dd if=/dev/zero of=/dev/shm/full bs=64k status=none 2> /dev/null || true
test "$(stat -f -c %f /dev/shm)" = 0
truncate -s "-$1" /dev/shm/full
shift
exec "$@"
"""
"""A shell program that runs its arguments where /dev/shm has 64 MiB, and they are full but for some bytes."""
SEMAPHORES = 256 * 1024
"""What Dask's workers need there, by multiprocessing."""

SCRIPT = """
import numpy as np
from tests.rpc.echo_learner import EchoLearner, expected_actions, registration
from tests.rpc.gateway_rig import pixels

spec = pixels(4, 128, 128)
with EchoLearner(spec, groups=2, envs=128, actors=8, evaluators=0) as learner:
    assert learner.slab.memory.nbytes > 128 * 2**20
    learner.slab.memory[:] = 0  # every page is there
    spoken = registration(7, fingerprint=spec.fingerprint, groups=2, envs=128)
    with learner.connect(spoken) as actor:
        rows = actor.rows(1)
        rows["observation"][:] = np.arange(128, dtype=np.uint8)[:, None, None, None]
        rows["first"][:] = True
        actor.ring(1)
        assert actor.wait(60.0) == 1
        np.testing.assert_array_equal(rows["action"], expected_actions(rows, 6))
print("stepped")
"""


def where_shm_is_full(free: int, *command: str) -> list[str]:
    return ["unshare", "--mount", "sh", "-e", "-c", FULL, "sh", str(free), *command]


def test_a_slab_of_128_mib_fits_where_shm_has_64_and_is_full() -> None:
    root = str(HERE.parents[1])
    command = where_shm_is_full(0, sys.executable, "-c", SCRIPT)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": root}
    )
    assert (done.returncode, done.stdout) == (0, "stepped\n"), done.stderr


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    with launcher(tmp_path) as started:
        yield started


TRAIN = (str(PROGRAM), "train", "tiny.yaml", "--run-dir", "run", "rpc.path=auto")


def test_a_whole_run_goes_through_where_shm_is_full_but_for_a_few_pages(launch: Launcher) -> None:
    launched = launch(*where_shm_is_full(SEMAPHORES, *TRAIN))
    assert launched.end() == 0, launched.err
    launched.check_quiet()
    assert metrics(launch.directory / "run")[-1]["steps/agent"] >= 1000


def test_where_not_a_page_is_left_the_error_says_so(launch: Launcher) -> None:
    launched = launch(*where_shm_is_full(0, *TRAIN))
    assert launched.end() == 1
    launched.check_quiet()
    assert "the local cluster of 2 workers did not start" in launched.err
    assert "No space left on device" in launched.err

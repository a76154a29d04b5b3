"""What `seedflow replay info` and `verify` say, and what they load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from seedflow.checkpoints import Generations, LocalStore, Manifest
from seedflow.cli import cli
from seedflow.replay.codec import encode
from seedflow.replay.disk.health import describe_replay, verify_checkpoints
from seedflow.replay.disk.part import ReplayPart
from seedflow.replay.disk.report import report_lines
from seedflow.replay.layout import ReplaySpec
from tests.replay.disk.forge import rewritten
from tests.replay.disk.ring import SPEC, Ring, encoded, save, saved

ROOT = Path(__file__).parents[3]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["replay", *arguments], catch_exceptions=False)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with two generations of a replay that has wrapped."""
    store = LocalStore(tmp_path / "checkpoints")
    generations, ring = Generations(store), Ring(capacity=28)
    for _ in range(2):
        save(generations, ring.arrive(100).snapshot())
    return tmp_path


def test_info_counts_what_is_there(run_dir: Path) -> None:
    snapshot = Ring(capacity=28).arrive(200).snapshot()
    result = invoke("info", str(run_dir), "--json")
    assert result.exit_code == 0
    info = json.loads(result.output)
    assert (info["generation"], info["sequences"], info["chunks"]) == (2, 28, len(snapshot.chunks))
    assert (info["first_sequence"], info["last_sequence"]) == (
        snapshot.sequences.generation[0],
        snapshot.sequences.generation[-1],
    )
    assert info["steps"] == len(snapshot.chunks) * SPEC.chunk
    assert info["stored_bytes"] == sum(len(array) for chunk in snapshot.chunks for array in chunk.data)
    assert info["raw_bytes"] == sum(SPEC.raw_bytes(chunk.position) for chunk in snapshot.chunks)
    assert info["ratio"] == pytest.approx(info["raw_bytes"] / info["stored_bytes"])
    store = LocalStore(run_dir / "checkpoints")
    files = Manifest.read(store, 2).files
    assert (info["files"], info["disk_bytes"]) == (len(files), sum(file.size for file in files))
    assert info["spec"] == SPEC.to_json()
    assert info["counters"] == {"inserted": 98}
    assert info["percentiles"]["50"] == np.median(snapshot.sequences.priority)
    assert sum(info["histogram"]) == 28
    assert [segment["problems"] for segment in info["segments"]] == [[]] * len(info["segments"])
    assert sum(segment["used"] for segment in info["segments"]) == len(snapshot.chunks)
    assert 0 <= info["created"] - info["oldest"] < 3600
    assert (
        json.loads(invoke("info", str(run_dir / "checkpoints"), "--generation", "1", "--json").output)[
            "generation"
        ]
        == 1
    )


def test_info_is_readable(run_dir: Path) -> None:
    report = describe_replay(LocalStore(run_dir / "checkpoints"))
    lines = list(report_lines(report, now=report.created + 7200))
    assert "generation  2, saved 2.0 h ago" in lines
    assert "sequences   28 (70 to 97)" in lines
    assert "field       observation/image: uint8 (3, 5, 30), zstd" in lines
    assert "state       lstm: float32 (4,), raw" in lines
    (heading,) = [number for number, line in enumerate(lines) if line.startswith("priorities")]
    bins = lines[heading + 1 : heading + 11]
    assert sum(int(line.split()[1]) for line in bins) == 28
    assert max(line.count("#") for line in bins) == 40
    assert all(line.startswith("segment     ok  segments/") for line in lines[heading + 11 :])
    printed = invoke("info", str(run_dir)).output.splitlines()
    assert [line.split()[0] for line in printed] == [line.split()[0] for line in lines]


@pytest.mark.parametrize("priority", [None, 0.0, 3.5])
def test_info_of_few_or_equal_priorities(tmp_path: Path, priority: float | None) -> None:
    snapshot = Ring(capacity=3).arrive(0 if priority is None else 60).snapshot()
    snapshot.sequences.priority[:] = priority or 0.0
    saved(tmp_path, snapshot)
    output = invoke("info", str(tmp_path)).output
    if priority is None:
        assert "sequences   0\n" in output
        assert "priorities" not in output
    else:
        assert f"50%: {priority:.4g}," in output
        assert "         3  ########################################" in output


def test_verify_reads_everything(run_dir: Path) -> None:
    result = invoke("verify", str(run_dir), "--json")
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert found["whole"]
    assert [generation["generation"] for generation in found["generations"]] == [2, 1]
    assert invoke("verify", str(run_dir)).output.count(": whole\n") == 2


def test_verify_says_what_is_damaged_and_exits_with_1(run_dir: Path) -> None:
    store = LocalStore(run_dir / "checkpoints")
    part = ReplayPart.of(store, Manifest.read(store, 2))
    path = run_dir / "checkpoints" / part.segments[-1].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    result = invoke("verify", str(run_dir))
    assert result.exit_code == 1
    assert "generation  2" in result.output
    assert ": DAMAGED\n" in result.output
    assert f"segment     DAMAGED  {part.segments[-1].path}" in result.output
    assert result.stderr.endswith("generations [2] are damaged, of 2\n")
    found = json.loads(invoke("verify", str(run_dir), "--json").stdout)
    assert [generation["whole"] for generation in found["generations"]] == [False, True]


def test_verify_decodes(tmp_path: Path) -> None:
    """A chunk whose checksum was computed over nonsense."""

    def nonsense(spec: ReplaySpec, lane: int, position: int) -> tuple[bytes, ...]:
        frames, *rest = encoded(spec, lane, position)
        if position == 3:
            frames = encode(np.frombuffer(frames[:8] + b"nonsense" * 4, np.uint8), compress=False)
        return (frames, *rest)

    store = saved(tmp_path, Ring(capacity=9, data=nonsense).arrive(30).snapshot())
    (health,) = verify_checkpoints(store)
    assert not health.whole
    assert len(health.segments[0].problems) == 3
    assert all("zstd frame" in problem for problem in health.segments[0].problems)


def test_verify_compares_the_metadata_that_others_read(tmp_path: Path) -> None:
    store = saved(tmp_path, Ring(capacity=9).arrive(30).snapshot(), "directory")
    part = ReplayPart.of(store, Manifest.read(store, 1))
    path = tmp_path / part.segments[0].path / "fields" / "reward" / "zarr.json"
    path.write_bytes(path.read_bytes().replace(b"float32", b"uint32 "))
    rewritten(tmp_path, lambda document: None)
    (health,) = verify_checkpoints(store)
    assert "fields/reward/zarr.json does not describe" in health.segments[0].problems[0]


def test_nothing_there_is_said(tmp_path: Path) -> None:
    for command in ("info", "verify"):
        result = invoke(command, str(tmp_path / "nowhere"))
        assert result.exit_code == 1
        assert "holds no checkpoint" in result.stderr


def test_looking_loads_no_torch_and_no_numba(run_dir: Path) -> None:
    script = (
        "import sys\nfrom seedflow.cli import cli\n"
        "for command in ('info', 'verify'):\n"
        f"    cli(['replay', command, {str(run_dir)!r}], standalone_mode=False)\n"
        "print({'torch', 'numba', 'dask', 'distributed', 'zarr', 'fsspec'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "set()"

"""What an installed package has that a checkout has."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from seedflow.config import config_names

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_carries_the_configurations_and_loads_them_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, timeout=280)
    (wheel,) = tmp_path.glob("seedflow-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {name.split("/")[0] for name in names} == {"seedflow", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert "seedflow/py.typed" in names

    script = (
        "import seedflow; from seedflow.config import config_names; "
        "print(seedflow.__file__, *config_names(), seedflow.load_config('cartpole_vtrace').env.id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    where, *printed = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert printed == [*config_names(), "CartPole-v1"]

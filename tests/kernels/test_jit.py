"""When kernels compile, and where machine code is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seedflow.kernels import jit

IMPORT_THEN_CALL = """
import sys
import torch
from numba.core.registry import CPUDispatcher
from seedflow import kernels

def compiled():
    modules = [m for name, m in sys.modules.items() if name.startswith("seedflow.kernels.")]
    found = [f for m in modules for f in vars(m).values() if isinstance(f, CPUDispatcher)]
    assert found
    return {f.__name__ for f in found if f.signatures}

assert not compiled(), compiled()
kernels.recurrent_scatter([torch.zeros(2)], torch.tensor([1]), [torch.ones(1)])
assert compiled() == {"_scatter", "first_outside"}, compiled()
"""


def test_importing_compiles_nothing_and_a_call_fills_the_cache_directory(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_THEN_CALL], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert [path.name.split(".")[1].split("-")[0] for path in tmp_path.rglob("*scatter*.nbi")] == ["_scatter"]


def test_without_a_place_for_a_cache_kernels_still_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    njit = jit.njit

    def uncacheable(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(jit, "njit", uncacheable)

    @jit.cpu_kernel
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert "set NUMBA_CACHE_DIR to a writable directory" in caplog.text

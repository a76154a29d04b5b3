"""CUDA twins are imported when they are needed, and say what to install where they cannot be."""

from __future__ import annotations

import subprocess
import sys

from .toolkit import need_toolkit

need_toolkit()

LATE = """
import sys
import torch
from seedflow import kernels
from seedflow.kernels import registry

def loaded():
    return sorted(name for name in sys.modules if name.startswith(("numba.cuda", "seedflow.kernels.cuda")))

kernels.recurrent_scatter([torch.zeros(2)], torch.tensor([1]), [torch.ones(1)])
assert not loaded(), loaded()
for operation in registry.operations():
    assert registry.twin(operation, "cuda").__module__.startswith("seedflow.kernels.cuda."), operation
"""

ABSENT = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba_cuda" else find(name, *rest)
from seedflow.errors import ConfigError
from seedflow.kernels import registry
try:
    registry.twin("vtrace", "cuda")
except ConfigError as error:
    assert "run pip install 'seedflow[cuda13]'" in str(error), error
else:
    raise SystemExit("no error")
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_numbas_cuda_target_is_loaded_at_the_first_cuda_tensor() -> None:
    run(LATE)


def test_without_numba_cuda_a_cuda_tensor_tells_what_to_install() -> None:
    run(ABSENT)

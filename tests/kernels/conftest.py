"""The twins that this machine can run, as a fixture."""

from __future__ import annotations

import os

import pytest
import torch

from seedflow.kernels import registry

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))

collect_ignore = (
    ["cuda", "gpu", "test_twins.py"] if SIMULATED else []
)  # the simulator stands in for Numba's CUDA


@pytest.fixture(params=["simulator"] if SIMULATED else ["cpu", "torch", CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device to call a kernel on; once more on CPU with the portable torch twins in place.

    In a process with Numba's CUDA simulator: CPU, with the CUDA twins in place.
    """
    if request.param in ("cpu", "cuda"):
        return str(request.param)
    if request.param == "simulator":
        from seedflow.kernels.cuda import twins  # noqa: F401
    for operation in registry.operations():
        twin = registry.twins(operation)["cuda" if request.param == "simulator" else registry.PORTABLE]
        monkeypatch.setitem(registry._twins[operation], "cpu", twin)
    return "cpu"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SIMULATED:  # numpy warns of numbers that GPUs quietly overflow to
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))

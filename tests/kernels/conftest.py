"""The twins that this machine can run, as a fixture."""

from __future__ import annotations

import pytest
import torch

from seedflow.kernels import registry

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.fixture(params=["cpu", "torch", CUDA])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device to call a kernel on; once more on CPU with the portable torch twins in place."""
    if request.param == "torch":
        for operation in registry.operations():
            monkeypatch.setitem(
                registry._twins[operation], "cpu", registry.twins(operation)[registry.PORTABLE]
            )
        return "cpu"
    return str(request.param)

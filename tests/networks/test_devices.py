"""The device that a setting stands for, on machines with and without a GPU and its packages."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from seedflow.errors import ConfigError
from seedflow.networks.devices import pick_device


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def no_numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "numba_cuda" else find(name, *rest)
    )


@pytest.fixture
def numba_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("no_gpu", "no_numba_cuda")
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error() -> None:
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="torch sees no CUDA device"):
        pick_device("cuda")


@pytest.mark.usefixtures("gpu", "numba_cuda")
def test_with_a_gpu_auto_is_the_gpu() -> None:
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("gpu", "no_numba_cuda")
@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize(("version", "extra"), [("12.9", "cuda12"), ("13.0", "cuda13")])
def test_a_gpu_without_numba_cuda_stops_with_the_command_that_installs_it(
    device: str, version: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    with pytest.raises(ConfigError) as caught:
        pick_device(device)
    assert f"run pip install 'seedflow[{extra}]', or set device=cpu" in str(caught.value)
    assert pick_device("cpu") == torch.device("cpu")

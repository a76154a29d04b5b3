"""Which device the learner computes on."""

from __future__ import annotations

import importlib.util

import torch

from seedflow.errors import ConfigError


def pick_device(device: str) -> torch.device:
    """Turn the `device` setting into a torch device.

    Raises
    ------
    ConfigError
        For ``cuda`` without a GPU, and for a GPU without the package that compiles the kernels.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(
            "device = 'cuda', but torch sees no CUDA device on this host; use device=cpu, or install a CUDA "
            "build of torch and check nvidia-smi"
        )
    if device == "cpu" or not available:
        return torch.device("cpu")
    if importlib.util.find_spec("numba_cuda") is None:
        raise ConfigError(
            f"device = {device!r}: there is a GPU, but numba-cuda is not installed; run "
            '`pip install "numba-cuda[cu13]"` (cu12 for CUDA 12), or use device=cpu'
        )
    return torch.device("cuda")

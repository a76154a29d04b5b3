"""Which device the learner computes on."""

from __future__ import annotations

import torch

from seedflow.errors import ConfigError
from seedflow.kernels.cuda.installation import check_installed


def pick_device(device: str) -> torch.device:
    """Turn the `device` setting into a torch device.

    Raises
    ------
    ConfigError
        For ``cuda`` without a GPU, and for a GPU without the package that its kernels need.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(
            "device = 'cuda', but torch sees no CUDA device on this host; use device=cpu, or install a CUDA "
            "build of torch and check nvidia-smi"
        )
    if device == "cpu" or not available:
        return torch.device("cpu")
    check_installed()
    return torch.device("cuda")

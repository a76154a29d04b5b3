"""Which device the learner computes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seedflow.errors import ConfigError

if TYPE_CHECKING:
    import torch

NO_CUDA = (
    "device = 'cuda', but torch sees no CUDA device on this host; use device=cpu, or install a CUDA build of "
    "torch and check nvidia-smi"
)


def pick_device(device: str) -> torch.device:
    """Turn the `device` setting into a torch device.

    Raises
    ------
    ConfigError
        For ``cuda`` without a GPU.
    """
    import torch

    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ConfigError(NO_CUDA)
    if device == "cpu" or not available:
        return torch.device("cpu")
    return torch.device("cuda")

"""Whether the CUDA kernels can run here: they need numba-cuda, which seedflow's extras bring."""

from __future__ import annotations

import importlib.util

import torch

from seedflow.errors import ConfigError


def install_command() -> str:
    """Return the command that installs what the CUDA kernels need, for this torch's CUDA version."""
    version = torch.version.cuda or "13"
    return f"pip install 'seedflow[cuda{version.partition('.')[0]}]'"


def check_installed() -> None:
    """Check that numba-cuda can be imported; finding it does not load it.

    Raises
    ------
    ConfigError
        With the command to install it.
    """
    if importlib.util.find_spec("numba_cuda") is None:
        raise ConfigError(
            "the learner's kernels on a GPU need the package numba-cuda, which is not installed: "
            f"run {install_command()}, or set device=cpu"
        )

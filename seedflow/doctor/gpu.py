"""Whether there is a GPU, whether torch sees it, and whether the kernels can run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from seedflow.doctor.finding import Finding

DRIVER_SECONDS, TORCH_SECONDS = 20.0, 300.0
ASK_TORCH = """
import json
import torch
from seedflow.errors import ConfigError
from seedflow.kernels.cuda.installation import check_installed

found = {"cuda": torch.version.cuda, "devices": [], "lacks": ""}
if torch.cuda.is_available():
    found["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    try:
        check_installed()
    except ConfigError as error:
        found["lacks"] = str(error)
print(json.dumps(found))
"""


def look_at_gpu() -> Iterator[Finding]:
    """The driver's GPUs, torch's, and what their kernels lack."""
    names = driver_gpus()
    text = ", ".join(names) if names else "none; the learner computes on the CPU (device=auto)"
    yield Finding("gpu", "gpus", names, text)
    if names and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        remedy = "unset CUDA_VISIBLE_DEVICES, or ask the batch system for a GPU (--gpus 1)"
        yield Finding("gpu", "visible", "", "CUDA_VISIBLE_DEVICES is empty and hides them", "missing", remedy)
        return
    found = _ask_torch()
    if isinstance(found, str):
        yield Finding("gpu", "torch", None, found, "problem", "pip install --force-reinstall torch")
    else:
        yield _judge(names, found)


def driver_gpus() -> list[str]:
    """The GPUs that the NVIDIA driver shows, by name."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=DRIVER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def _ask_torch() -> dict[str, Any] | str:
    """What torch sees, in a process of its own: it takes long to load and may crash. Or why it did not."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=TORCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch could not be loaded within {TORCH_SECONDS:g} s"
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"torch cannot be loaded: {last}"
    return found


def _judge(names: list[str], found: dict[str, Any]) -> Finding:
    build = f"built for CUDA {found['cuda']}" if found["cuda"] else "built for CPUs"
    if found["lacks"]:
        return Finding("gpu", "torch", found, found["lacks"], "problem", "as it says")
    if names and not found["devices"]:
        remedy = "install a torch for this driver's CUDA (https://pytorch.org), and check nvidia-smi"
        return Finding("gpu", "torch", found, f"{build}, sees no GPU", "problem", remedy)
    seen = f"sees {', '.join(found['devices'])}" if found["devices"] else "no GPU to see"
    return Finding("gpu", "torch", found, f"{build}, {seen}")

"""Every CUDA kernel compiles for the GPUs that matter, and to code without surprises. No GPU is needed."""

from __future__ import annotations

import re

import pytest

from .toolkit import Capability, assembly_of, need_toolkit, ptx_of

need_toolkit()

from seedflow.kernels.cuda import twins  # noqa: F401
from seedflow.kernels.cuda.launcher import KERNELS, Kernel

from .sizes import launches

AMPERE, HOPPER = (8, 0), (9, 0)
SHARED_MEMORY = 48 * 1024  # what a block gets without asking
REGISTERS = 64 * 1024  # of a multiprocessor

kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
gpus = pytest.mark.parametrize("gpu", [AMPERE, HOPPER], ids=["sm_80", "sm_90"])


@kernels
@gpus
def test_a_kernel_spills_nothing_and_keeps_to_its_registers(kernel: Kernel, gpu: Capability) -> None:
    assembly = assembly_of(kernel, gpu)
    assert assembly.spills == 0
    assert assembly.stack == 0
    assert 0 < assembly.registers <= kernel.registers
    assert assembly.shared <= SHARED_MEMORY


@kernels
def test_its_largest_block_fits_on_a_multiprocessor(kernel: Kernel) -> None:
    threads = max(x * y * z for _, (x, y, z) in launches(kernel))
    assert kernel.registers * threads <= REGISTERS


@kernels
@gpus
def test_float64_is_used_where_it_is_meant_only(kernel: Kernel, gpu: Capability) -> None:
    instructions = re.findall(r"^\s+(?:@\S+ )?(\S+\.f64\S*)\s", ptx_of(kernel, gpu), re.MULTILINE)
    assert bool(instructions) == kernel.double, instructions


@kernels
def test_a_kernel_calls_nothing_but_itself(kernel: Kernel) -> None:
    """A call that was not inlined, of a slow division by a library, say, would show here."""
    assert "call" not in re.findall(r"^\s+(?:@\S+ )?([a-z]+)", ptx_of(kernel, HOPPER), re.MULTILINE)

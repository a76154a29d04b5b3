"""What a launch rule asks for is what any GPU can do."""

from __future__ import annotations

import pytest

from .toolkit import need_toolkit

need_toolkit()

from seedflow.kernels import registry
from seedflow.kernels.cuda import twins  # noqa: F401
from seedflow.kernels.cuda.launcher import KERNELS, Kernel

from .sizes import launches

LARGEST_GRID = (2**31 - 1, 65_535, 65_535)
LARGEST_BLOCK = (1024, 1024, 64)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_launch_is_within_the_limits(kernel: Kernel) -> None:
    for grid, block in launches(kernel):
        assert all(0 <= size <= most for size, most in zip(grid, LARGEST_GRID, strict=True)), grid
        if 0 not in grid:
            assert all(0 < size <= most for size, most in zip(block, LARGEST_BLOCK, strict=True)), block
            assert block[0] * block[1] * block[2] <= 1024


def test_every_operation_has_a_cuda_twin_made_of_kernels() -> None:
    assert {kernel.operation for kernel in KERNELS} == set(registry.operations())
    for operation in registry.operations():
        assert "cuda" in registry.twins(operation)


def test_names_tell_kernels_apart() -> None:
    names = [kernel.name for kernel in KERNELS]
    assert len(set(names)) == len(names)

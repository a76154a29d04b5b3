"""Imports every CUDA twin, which registers it."""

from seedflow.kernels.cuda import moves, sum_tree, vtrace

__all__ = ["moves", "sum_tree", "vtrace"]

"""Imports every CUDA twin, which registers it."""

from seedflow.kernels.cuda import moves, r2d2_loss, returns, sum_tree, vtrace, vtrace_loss

__all__ = ["moves", "r2d2_loss", "returns", "sum_tree", "vtrace", "vtrace_loss"]

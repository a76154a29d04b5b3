"""Imports every CUDA twin, which registers it."""

from seedflow.kernels.cuda import (
    moves,
    optimizer_step,
    r2d2_loss,
    returns,
    sample,
    sum_tree,
    vtrace,
    vtrace_loss,
)

__all__ = ["moves", "optimizer_step", "r2d2_loss", "returns", "sample", "sum_tree", "vtrace", "vtrace_loss"]

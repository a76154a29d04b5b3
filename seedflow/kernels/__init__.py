"""Fused array kernels: one function an operation, one twin a device behind it.

Every function takes torch tensors, checks them, allocates what it returns unless ``out`` is given, and
lets the twin of the tensors' device do the work: a Numba kernel on CPU; plain torch on CUDA, until a
CUDA twin registers (`seedflow.kernels.registry`). CPU twins release the GIL and may be called from
several threads at once. Kernels compile at their first call, never at import.

=====================  ===========================================================================
`vtrace`               V-trace targets and advantages, from log importance ratios
`vtrace_loss`          the V-trace loss of a categorical policy and its gradients, from logits
`r2d2_loss`            the R2D2 loss, its gradient and the sequences' priorities, from Q-values
`gae`, `n_step`        advantages and returns of on-policy methods
`sample_categorical`   actions with log-probabilities and entropies, from logits
`rmsprop_step`         a step over one flat buffer, with clipping; `adam_step` likewise
`recurrent_gather`     rows of the core-state tables into a batch, zero where an episode begins
`recurrent_scatter`    the batch's new core states back into the tables
`unroll_append`        one index of many unrolls into their slots
`unroll_gather`        a time-major batch out of slots
`slab_gather`          rows of the slab into a batch, from pinned memory where that is on a GPU
`sum_tree_set`         values of a sum tree, by which `sum_tree_sample` draws
=====================  ===========================================================================
"""

from seedflow.kernels.checks import check_finite
from seedflow.kernels.optimizer_step import adam_step, rmsprop_step
from seedflow.kernels.r2d2_loss import R2D2_LOSS_TERMS, R2D2Loss, r2d2_loss
from seedflow.kernels.recurrent import recurrent_gather, recurrent_scatter
from seedflow.kernels.returns import GaeReturns, gae, n_step
from seedflow.kernels.sample import CategoricalSample, sample_categorical
from seedflow.kernels.slab import slab_gather
from seedflow.kernels.sum_tree import (
    SumTreeSample,
    sum_tree_leaves,
    sum_tree_min,
    sum_tree_new,
    sum_tree_sample,
    sum_tree_set,
    sum_tree_total,
)
from seedflow.kernels.unroll import unroll_append, unroll_gather
from seedflow.kernels.vtrace import VTraceReturns, vtrace
from seedflow.kernels.vtrace_loss import VTRACE_LOSS_TERMS, VTraceLoss, vtrace_loss

__all__ = [
    "R2D2_LOSS_TERMS",
    "VTRACE_LOSS_TERMS",
    "CategoricalSample",
    "GaeReturns",
    "R2D2Loss",
    "SumTreeSample",
    "VTraceLoss",
    "VTraceReturns",
    "adam_step",
    "check_finite",
    "gae",
    "n_step",
    "r2d2_loss",
    "recurrent_gather",
    "recurrent_scatter",
    "rmsprop_step",
    "sample_categorical",
    "slab_gather",
    "sum_tree_leaves",
    "sum_tree_min",
    "sum_tree_new",
    "sum_tree_sample",
    "sum_tree_set",
    "sum_tree_total",
    "unroll_append",
    "unroll_gather",
    "vtrace",
    "vtrace_loss",
]

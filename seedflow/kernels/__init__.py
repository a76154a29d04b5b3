"""Fused array kernels: one function an operation, one twin a device behind it.

Every function takes torch tensors, checks them, allocates what it returns unless ``out`` is given, and
lets the twin of the tensors' device do the work: a Numba kernel on CPU; plain torch on CUDA, until a
CUDA twin registers (`seedflow.kernels.registry`). CPU twins release the GIL and may be called from
several threads at once. Kernels compile at their first call, never at import.

===================  ==================================================================
`vtrace`             V-trace targets and advantages, from log importance ratios
`recurrent_gather`   rows of the core-state tables into a batch, zero where an episode begins
`recurrent_scatter`  the batch's new core states back into the tables
`unroll_append`      one index of many unrolls into their slots
`unroll_gather`      a time-major batch out of slots
===================  ==================================================================
"""

from seedflow.kernels.recurrent import recurrent_gather, recurrent_scatter
from seedflow.kernels.unroll import unroll_append, unroll_gather
from seedflow.kernels.vtrace import VTraceReturns, vtrace

__all__ = [
    "VTraceReturns",
    "recurrent_gather",
    "recurrent_scatter",
    "unroll_append",
    "unroll_gather",
    "vtrace",
]

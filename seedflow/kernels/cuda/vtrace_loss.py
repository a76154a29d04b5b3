"""CUDA twin of `vtrace_loss`: three launches, or two where every transition is valid.

The first counts valid transitions, by which the gradients are divided. The second does the work: a thread
has one column of the batch and some steps of it. It goes backwards through them to learn how they carry
the V-trace error (see `seedflow.kernels.cuda.vtrace`), gets the error that enters them from the threads
behind it, and goes through them again to write gradients; in between, log-probabilities wait where the
gradient of the values will be. The third adds up what the blocks have summed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.numbers import (
    ONE,
    ZERO,
    add_up,
    add_up_blocks,
    bounded_exp,
    from_bits,
    grid_of_one,
    threads_for,
    to_bits,
)
from seedflow.kernels.cuda.softmax import LOWEST, softmax_of
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.cuda.vtrace import entering_error, follow, transition
from seedflow.kernels.registry import register

COLUMNS = 8  # of a block
CHUNKS = 32  # at most
THREADS = COLUMNS * CHUNKS
COUNTERS = 32  # blocks that count, at most
SUMS = 9
BUSY = 1 << 18  # threads that keep a large GPU busy
NAN = np.float32(np.nan)
EPSILON = 1e-8


def grid_of_counters(size: int) -> tuple[Grid, Grid]:
    """A block for every thousand flags, 32 blocks at most."""
    blocks = min(COUNTERS, -(-size // 1024))
    return (blocks, 1, 1), (threads_for(size, THREADS), 1, 1)


def grid_of_columns(steps: int, columns: int) -> tuple[Grid, Grid]:
    """Eight columns a block; as many chunks as the GPU has room for, a power of two."""
    wanted = min(CHUNKS, -(-steps // 2), -(-BUSY // max(columns, 1)))
    return (-(-columns // COLUMNS), 1, 1), (COLUMNS, threads_for(wanted, CHUNKS), 1)


@kernel
def _count(valid: np.ndarray, counts: np.ndarray) -> None:
    parts = cuda.shared.array((1, THREADS), np.int32)
    thread = cuda.threadIdx.x
    count = 0
    for i in range(cuda.grid(1), valid.size, cuda.gridsize(1)):
        count += valid[i] != 0
    parts[0, thread] = count
    add_up(parts, 1, thread, cuda.blockDim.x, 1)
    if thread == 0:
        counts[cuda.blockIdx.x] = parts[0, 0]


@device_function
def number_of(counts: np.ndarray, size: int) -> Any:
    """Return how many transitions are valid, at least 1: all `size` of them where nobody counted."""
    number = size if counts.size == 0 else 0
    for i in range(counts.size):
        number += counts[i]
    return max(number, 1)


@device_function
def log_prob_of(
    logits: np.ndarray, row: int, width: int, actions: np.ndarray, ends: np.ndarray, shift: int
) -> Any:
    """Return the log-probability of a row's action, over all its parts; a NaN where it is out of range."""
    log_prob, start = ZERO, 0
    for part in range(ends.size):
        action, stop = start + actions[row * ends.size + part], ends[part]
        top, log_total, _ = softmax_of(logits, row * width + start, row * width + stop, shift)
        if start <= action < stop:
            log_prob += from_bits(logits[row * width + action], shift) - top - log_total
        else:
            log_prob += NAN
        start = stop
    return log_prob


@device_function
def write_slopes(
    logits: np.ndarray,
    row: int,
    width: int,
    actions: np.ndarray,
    ends: np.ndarray,
    shift: int,
    ok: bool,
    advantage: Any,
    entropy_cost: Any,
    share: Any,
    d_logits: np.ndarray,
) -> Any:
    """Write the gradient of a row's logits; return the row's entropy."""
    entropy, start = ZERO, 0
    for part in range(ends.size):
        action, stop = start + actions[row * ends.size + part], ends[part]
        top, log_total, part_entropy = softmax_of(logits, row * width + start, row * width + stop, shift)
        entropy += part_entropy
        for a in range(start, stop):
            x = from_bits(logits[row * width + a], shift) - top
            slope = ZERO
            if not x <= LOWEST:
                slope = bounded_exp(x - log_total) * (
                    advantage + entropy_cost * (x - log_total + part_entropy)
                )
            if a == action:
                slope -= advantage
            d_logits[row * width + a] = to_bits(slope * share if ok else ZERO, shift)
        start = stop
    return entropy


@kernel
def _loss(
    logits: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    behaviour: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    valid: np.ndarray,
    counts: np.ndarray,
    ends: np.ndarray,
    steps: int,
    columns: int,
    width: int,
    shift: int,
    rho_bar: np.float32,
    c_bar: np.float32,
    pg_rho_bar: np.float32,
    trace_decay: np.float32,
    value_cost: np.float32,
    entropy_cost: np.float32,
    sums: np.ndarray,
    d_logits: np.ndarray,
    d_values: np.ndarray,
) -> None:
    offsets = cuda.shared.array((CHUNKS, COLUMNS), np.float32)
    factors = cuda.shared.array((CHUNKS, COLUMNS), np.float32)
    parts = cuda.shared.array((SUMS, THREADS), np.float64)
    x, chunk, chunks = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.y
    column = cuda.blockIdx.x * COLUMNS + x
    length = (steps + chunks - 1) // chunks
    start = chunk * length
    count = min(length, steps - start) if column < columns else 0
    masked = counts.size > 0

    offset, factor = ZERO, ONE
    for i in range(count):
        at = (start + count - 1 - i) * columns + column
        log_prob = log_prob_of(logits, at, width, actions, ends, shift)
        d_values[at] = log_prob
        ratio = bounded_exp(log_prob - behaviour[at])
        ok = not masked or valid[at] != 0
        delta, carry = transition(
            ratio,
            rewards[at],
            discounts[at],
            values[at],
            values[at + columns],
            ok,
            rho_bar,
            c_bar,
            trace_decay,
        )
        offset, factor = follow(delta, carry, offset), carry * factor
    offsets[chunk, x] = offset
    factors[chunk, x] = factor
    cuda.syncthreads()

    share = ONE / np.float32(number_of(counts, steps * columns))
    error = entering_error(offsets, factors, x, chunk, chunks)
    policy, squares, sizes, errors, targets, target_squares = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    rho_clipped, c_clipped, entropies = 0.0, 0.0, 0.0
    for i in range(count):
        at = (start + count - 1 - i) * columns + column
        v_t, v_tp1, log_prob = values[at], values[at + columns], d_values[at]
        ratio = bounded_exp(log_prob - behaviour[at])
        ok = not masked or valid[at] != 0
        delta, carry = transition(
            ratio, rewards[at], discounts[at], v_t, v_tp1, ok, rho_bar, c_bar, trace_decay
        )
        pg_rho = pg_rho_bar if ratio > pg_rho_bar else ratio
        advantage = pg_rho * (rewards[at] + discounts[at] * (v_tp1 + error) - v_t)
        error = follow(delta, carry, error)
        d_values[at] = -value_cost * share * error
        entropy = write_slopes(
            logits, at, width, actions, ends, shift, ok, advantage, entropy_cost, share, d_logits
        )
        if ok:
            target = np.float64(v_t + error)
            policy -= np.float64(log_prob * advantage)
            squares += np.float64(error) * np.float64(error)
            sizes += np.float64(abs(error))
            errors += np.float64(error)
            targets += target
            target_squares += target * target
            rho_clipped += 1.0 if ratio > rho_bar else 0.0
            c_clipped += 1.0 if ratio > c_bar else 0.0
            entropies += np.float64(entropy)
    if chunk == 0 and column < columns:  # of the last index, which only bootstraps
        last = steps * columns + column
        d_values[last] = ZERO
        for a in range(width):
            d_logits[last * width + a] = 0

    thread = chunk * COLUMNS + x
    parts[0, thread] = policy
    parts[1, thread] = squares
    parts[2, thread] = sizes
    parts[3, thread] = errors
    parts[4, thread] = targets
    parts[5, thread] = target_squares
    parts[6, thread] = rho_clipped
    parts[7, thread] = c_clipped
    parts[8, thread] = entropies
    add_up(parts, SUMS, thread, chunks * COLUMNS, 1)
    if thread == 0:
        for kind in range(SUMS):
            sums[cuda.blockIdx.x * SUMS + kind] = parts[kind, 0]


@kernel
def _finish(
    sums: np.ndarray,
    counts: np.ndarray,
    size: int,
    value_cost: np.float32,
    entropy_cost: np.float32,
    total: np.ndarray,
    terms: np.ndarray,
    finite: np.ndarray,
) -> None:
    parts = cuda.shared.array((SUMS, THREADS), np.float64)
    thread = cuda.threadIdx.x
    add_up_blocks(sums, parts, SUMS, thread, cuda.blockDim.x)
    if thread > 0:
        return
    number = number_of(counts, size)
    policy = parts[0, 0] / number
    square, error, target = parts[1, 0] / number, parts[3, 0] / number, parts[4, 0] / number
    entropy = parts[8, 0] / number
    residual, spread = square - error * error, parts[5, 0] / number - target * target
    loss = policy + value_cost * (0.5 * square) - entropy_cost * entropy
    total[0] = loss
    terms[0] = loss
    terms[1] = policy
    terms[2] = 0.5 * square
    terms[3] = entropy
    terms[4] = parts[2, 0] / number
    terms[5] = 1.0 - max(residual, 0.0) / (max(spread, 0.0) + EPSILON)
    terms[6] = parts[6, 0] / number
    terms[7] = parts[7, 0] / number
    if finite.size > 0 and not math.isfinite(np.float32(loss)):
        finite[0] = 0


count_valid = Kernel("vtrace_loss", _count, ["uint8[]", "int32[]"], grid_of_counters, registers=32)
loss_of = {
    dtype: Kernel(
        "vtrace_loss",
        _loss,
        [f"{bits}[]", "float32[]", "int64[]", "float32[]", "float32[]", "float32[]", "uint8[]", "int32[]"]
        + ["int32[]"]
        + ["int32"] * 4
        + ["float32"] * 6
        + ["float64[]", f"{bits}[]", "float32[]"],
        grid_of_columns,
        registers=128,
        double=True,
    )
    for dtype, bits in {torch.float32: "uint32", torch.bfloat16: "uint16"}.items()
}
finish = Kernel(
    "vtrace_loss",
    _finish,
    ["float64[]", "int32[]", "int64", "float32", "float32", "float32[]", "float32[]", "int32[]"],
    grid_of_one,
    registers=64,
    double=True,
)


@functools.lru_cache(maxsize=64)
def ends_of(splits: tuple[int, ...], device: torch.device) -> Tensor:
    """One past the last logit of each part of an action, on a device; made once."""
    return torch.tensor(splits, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


@register("vtrace_loss", "cuda")
def _vtrace_loss_cuda(
    logits: Tensor,
    values: Tensor,
    actions: Tensor,
    behaviour_log_probs: Tensor,
    rewards: Tensor,
    discounts: Tensor,
    valid: Tensor | None,
    splits: Sequence[int],
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    value_cost: float,
    entropy_cost: float,
    total: Tensor,
    terms: Tensor,
    d_logits: Tensor,
    d_values: Tensor,
    finite: Tensor | None,
) -> None:
    device = logits.device
    (steps, columns), width = rewards.shape, logits.shape[2]
    size = steps * columns
    counts = None
    if valid is not None:
        (blocks, _, _), _ = grid_of_counters(size)
        counts = torch.empty(blocks, dtype=torch.int32, device=device)
        count_valid(device, (size,), *vector(valid), *vector(counts))
    (blocks, _, _), _ = grid_of_columns(steps, columns)
    sums = torch.empty(blocks * SUMS, dtype=torch.float64, device=device)
    loss_of[logits.dtype](
        device,
        (steps, columns),
        *vector(logits),
        *vector(values),
        *vector(actions),
        *vector(behaviour_log_probs),
        *vector(rewards),
        *vector(discounts),
        *vector(valid),
        *vector(counts),
        *vector(ends_of(tuple(splits), device)),
        steps,
        columns,
        width,
        16 if logits.dtype is torch.bfloat16 else 0,
        rho_bar,
        c_bar,
        pg_rho_bar,
        trace_decay,
        value_cost,
        entropy_cost,
        *vector(sums),
        *vector(d_logits),
        *vector(d_values),
    )
    finish(
        device,
        (blocks,),
        *vector(sums),
        *vector(counts),
        size,
        value_cost,
        entropy_cost,
        *vector(total),
        *vector(terms),
        *vector(finite),
    )

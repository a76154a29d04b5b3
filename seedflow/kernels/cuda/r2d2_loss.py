"""CUDA twin of `r2d2_loss`: two launches.

A block has four sequences, and up to 64 threads for each of them; a thread has every 64th index, say. It
looks up the values that windows end with, which wait where the errors will be; then it walks each index's
window back from its end. An index's value is read by windows from that index or an earlier one, so errors
take the values' place from the front, 64 indices at a time. The second launch adds up what the blocks have
summed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels.cuda.arguments import vector
from seedflow.kernels.cuda.launcher import Grid, Kernel
from seedflow.kernels.cuda.numbers import ONE, ZERO, add_up, add_up_blocks, grid_of_one, threads_for
from seedflow.kernels.cuda.target import cuda, device_function, kernel
from seedflow.kernels.r2d2_loss import MIN_PRIORITY
from seedflow.kernels.registry import register

SEQUENCES = 4  # of a block
LANES = 64  # threads of a sequence
THREADS = SEQUENCES * LANES
SUMS = 5  # of the loss, |error|, value, target, and of valid indices
TWO = np.float32(2.0)
FOUR = np.float32(4.0)
NAN = np.float32(np.nan)


def grid_of_sequences(indices: int, batch: int) -> tuple[Grid, Grid]:
    """Four sequences a block, and as many threads for each of them as it has indices, or 64."""
    return (-(-batch // SEQUENCES), 1, 1), (SEQUENCES, threads_for(indices, LANES), 1)


@device_function
def rescale(x: Any, epsilon: Any) -> Any:
    """h, in a form that holds in float32."""
    return x / (math.sqrt(abs(x) + ONE) + ONE) + epsilon * x


@device_function
def inverse_rescale(x: Any, epsilon: Any) -> Any:
    """The inverse of h, likewise."""
    c = ONE + TWO * epsilon
    size = abs(x)
    w = TWO * size / (math.sqrt(c * c + FOUR * epsilon * size) + c)
    return -(w * (w + TWO)) if x < ZERO else w * (w + TWO)


@device_function
def best_of(q_online: np.ndarray, q_target: np.ndarray, start: int, width: int) -> Any:
    """Return the target network's value of the online network's action; not a number if that is none."""
    top, action = q_online[start], 0
    for a in range(1, width):
        q = q_online[start + a]
        if q > top or q != q:
            top, action = q, a
    return q_target[start + action] + (top - top)


@device_function
def target_of(
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    first: np.ndarray,
    best: np.ndarray,
    at: int,
    reach: int,
    batch: int,
    discount: Any,
) -> Any:
    """Return the sum of a window's rewards and the value that it ends with."""
    target = best[at + reach * batch]
    for i in range(reach):
        j = at + (reach - 1 - i) * batch
        k = j + batch
        if first[k]:
            target = best[j]
        elif terminated[k]:
            target = rewards[k]
        else:
            target = rewards[k] + discount * (best[k] if truncated[k] else target)
    return target


@kernel
def _loss(
    q_online: np.ndarray,
    q_target: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    first: np.ndarray,
    weights: np.ndarray,
    indices: int,
    batch: int,
    width: int,
    burn_in: int,
    n_step: int,
    discount: np.float32,
    epsilon: np.float32,
    eta: np.float32,
    smallest: np.float32,
    share: np.float32,
    sums: np.ndarray,
    priorities: np.ndarray,
    td_errors: np.ndarray,
    d_q: np.ndarray,
) -> None:
    largest = cuda.shared.array(THREADS, np.float32)
    parts = cuda.shared.array((SUMS, THREADS), np.float64)
    x, lane, lanes = cuda.threadIdx.x, cuda.threadIdx.y, cuda.blockDim.y
    thread, threads = lane * SEQUENCES + x, lanes * SEQUENCES
    b = cuda.blockIdx.x * SEQUENCES + x
    real = b < batch
    if real:
        for t in range(lane, indices, lanes):
            at = t * batch + b
            if t >= burn_in:
                best = best_of(q_online, q_target, at * width, width)
                td_errors[at] = inverse_rescale(best, epsilon)
            for a in range(width):
                d_q[at * width + a] = ZERO
    cuda.syncthreads()

    most = ZERO
    squares, sizes, values, targets, count = 0.0, 0.0, 0.0, 0.0, 0.0
    for block in range((indices + lanes - 1) // lanes):
        t = block * lanes + lane
        at = t * batch + b
        error = ZERO
        if real and burn_in <= t < indices - 1 and not first[at + batch]:
            reach = min(n_step, indices - 1 - t)
            window = target_of(rewards, terminated, truncated, first, td_errors, at, reach, batch, discount)
            target = rescale(window, epsilon)
            action = actions[at]
            value = q_online[at * width + action] if 0 <= action < width else NAN
            error = target - value
            if 0 <= action < width:
                d_q[at * width + action] = -weights[b] * error * share
            size = abs(error)
            most = most if most > size else size
            squares += np.float64(error) * np.float64(error)
            sizes += np.float64(size)
            values += np.float64(value)
            targets += np.float64(target)
            count += 1.0
        cuda.syncthreads()
        if real and t < indices:
            td_errors[at] = error

    largest[thread] = most
    parts[0, thread] = squares
    parts[1, thread] = sizes
    parts[2, thread] = values
    parts[3, thread] = targets
    parts[4, thread] = count
    cuda.syncthreads()
    half = threads // 2
    while half >= SEQUENCES:
        if thread < half:
            one, other = largest[thread], largest[thread + half]
            largest[thread] = one if one > other else other
        cuda.syncthreads()
        half //= 2
    add_up(parts, SUMS, thread, threads, SEQUENCES)
    if lane == 0 and real:
        mean = np.float32(parts[1, x] / max(parts[4, x], 1.0))
        priority = eta * largest[x] + (ONE - eta) * mean
        priorities[b] = smallest if priority < smallest else priority
        parts[0, x] *= 0.5 * np.float64(weights[b]) * np.float64(share)
    add_up(parts, SUMS, thread, SEQUENCES, 1)
    if thread == 0:
        for kind in range(SUMS):
            sums[cuda.blockIdx.x * SUMS + kind] = parts[kind, 0]


@kernel
def _finish(sums: np.ndarray, total: np.ndarray, terms: np.ndarray, finite: np.ndarray) -> None:
    parts = cuda.shared.array((SUMS, THREADS), np.float64)
    thread = cuda.threadIdx.x
    add_up_blocks(sums, parts, SUMS, thread, cuda.blockDim.x)
    if thread > 0:
        return
    loss, count = parts[0, 0], max(parts[4, 0], 1.0)
    total[0] = loss
    terms[0] = loss
    for kind in range(1, 4):
        terms[kind] = parts[kind, 0] / count
    if finite.size > 0 and not math.isfinite(np.float32(loss)):
        finite[0] = 0


loss_and_gradient = Kernel(
    "r2d2_loss",
    _loss,
    [
        *["float32[]"] * 2,
        "int64[]",
        "float32[]",
        *["uint8[]"] * 3,
        "float32[]",
        *["int32"] * 5,
        *["float32"] * 5,
        "float64[]",
        *["float32[]"] * 3,
    ],
    grid_of_sequences,
    registers=96,
    double=True,
)
finish = Kernel(
    "r2d2_loss",
    _finish,
    ["float64[]", "float32[]", "float32[]", "int32[]"],
    grid_of_one,
    registers=64,
    double=True,
)


@register("r2d2_loss", "cuda")
def _r2d2_loss_cuda(
    q_online: Tensor,
    q_target: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    first: Tensor,
    weights: Tensor,
    burn_in: int,
    n_step: int,
    discount: float,
    rescale_epsilon: float,
    eta: float,
    total: Tensor,
    terms: Tensor,
    priorities: Tensor,
    td_errors: Tensor,
    d_q_online: Tensor,
    finite: Tensor | None,
) -> None:
    device = q_online.device
    indices, batch, width = q_online.shape
    (blocks, _, _), _ = grid_of_sequences(indices, batch)
    sums = torch.empty(blocks * SUMS, dtype=torch.float64, device=device)
    loss_and_gradient(
        device,
        (indices, batch),
        *vector(q_online),
        *vector(q_target),
        *vector(actions),
        *vector(rewards),
        *vector(terminated),
        *vector(truncated),
        *vector(first),
        *vector(weights),
        indices,
        batch,
        width,
        burn_in,
        min(n_step, indices),
        discount,
        rescale_epsilon,
        eta,
        MIN_PRIORITY,
        1.0 / max(batch, 1),
        *vector(sums),
        *vector(priorities),
        *vector(td_errors),
        *vector(d_q_online),
    )
    finish(device, (blocks,), *vector(sums), *vector(total), *vector(terms), *vector(finite))

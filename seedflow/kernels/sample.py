"""Sampling from categorical distributions by an exponential race, with log-probability and entropy.

``argmin_a E_a / p_a`` with ``E_a ~ Exp(1)`` is distributed as p: the minimum of exponential clocks. The
clocks are ``E_a = -log u_a``, with u uniform in [0, 1).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedflow.kernels import checks
from seedflow.kernels.elementary import log
from seedflow.kernels.jit import cpu_kernel
from seedflow.kernels.registry import constant, define, register, twin
from seedflow.kernels.softmax import TILE, softmax, transpose

define(
    "sample_categorical",
    "Tensor logits, Tensor uniform, Tensor(a!) action, Tensor(b!) log_prob, Tensor(c!) entropy",
)


class CategoricalSample(NamedTuple):
    """Actions, int64, their log-probabilities and the entropies of their distributions, ``[...]``."""

    action: Tensor
    log_prob: Tensor
    entropy: Tensor


def sample_categorical(
    logits: Tensor, random: Tensor | torch.Generator, out: CategoricalSample | None = None
) -> CategoricalSample:
    """Sample one action from each distribution.

    Parameters
    ----------
    logits
        Unnormalized log-probabilities, float32 ``[..., A]``; an action at -inf is never sampled.
    random
        A source of randomness on the logits' device, or uniform random numbers from [0, 1), float32
        ``[..., A]``.
    out
        Contiguous tensors to write to.

    Returns
    -------
    CategoricalSample
        `out`, or new tensors; constants for the gradient.

    Raises
    ------
    SpecError
        When an argument has another shape, dtype or device than stated here, or is not contiguous.

    Examples
    --------
    >>> logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    >>> sample_categorical(logits, torch.Generator().manual_seed(0)).action.tolist()
    [0, 1]
    """
    checks.check_rank("logits", logits, 1, "[..., A]")
    shape, device = logits.shape, logits.device
    checks.check_array("logits", logits, shape, torch.float32, device, "[..., A]")
    if isinstance(random, Tensor):
        checks.check_array("random", random, shape, torch.float32, device, "[..., A] as logits")
        uniform = random
    else:
        uniform = torch.rand(shape, generator=random, dtype=torch.float32, device=device)
    size, axes = shape[:-1], "[...] as logits"
    if out is None:
        action = torch.empty(size, dtype=torch.int64, device=device)
        out = CategoricalSample(action, logits.new_empty(size), logits.new_empty(size))
    else:
        checks.check_array("out.action", out.action, size, torch.int64, device, axes)
        checks.check_array("out.log_prob", out.log_prob, size, torch.float32, device, axes)
        checks.check_array("out.entropy", out.entropy, size, torch.float32, device, axes)
    twin("sample_categorical", device.type)(constant(logits), uniform, out.action, out.log_prob, out.entropy)
    return out


@register("sample_categorical", "torch")
def _sample_torch(logits: Tensor, uniform: Tensor, action: Tensor, log_prob: Tensor, entropy: Tensor) -> None:
    log_policy = torch.log_softmax(logits, dim=-1)
    policy = log_policy.exp()
    score = (policy / (0.0 - uniform.log())).masked_fill(policy == 0.0, -1.0)
    action.copy_(score.argmax(dim=-1))
    log_prob.copy_(log_policy.gather(-1, action.unsqueeze(-1)).squeeze(-1))
    entropy.copy_(-(policy * log_policy.masked_fill(policy == 0.0, 0.0)).sum(-1))


@register("sample_categorical", "cpu")
def _sample_cpu(logits: Tensor, uniform: Tensor, action: Tensor, log_prob: Tensor, entropy: Tensor) -> None:
    rows, width = math.prod(logits.shape[:-1]), logits.shape[-1]
    _sample(
        logits.numpy().reshape(rows, width),
        uniform.numpy().reshape(rows, width),
        action.numpy().reshape(rows),
        log_prob.numpy().reshape(rows),
        entropy.numpy().reshape(rows),
    )


@cpu_kernel
def _race(uniform: np.ndarray, weight: np.ndarray, best: np.ndarray, action: np.ndarray, n: int) -> None:
    never = np.float32(-1.0)
    for b in range(n):
        best[b] = never
        action[b] = 0
    for a in range(weight.shape[0]):
        uniform_a, weight_a = uniform[a], weight[a]
        for b in range(n):
            score = weight_a[b] / (np.float32(0.0) - log(uniform_a[b]))  # not -log: it may be -0
            score = score if weight_a[b] > np.float32(0.0) else never
            wins = score > best[b]
            best[b] = score if wins else best[b]
            action[b] = np.int32(a) if wins else action[b]


@cpu_kernel
def _sample(
    logits: np.ndarray, uniform: np.ndarray, action: np.ndarray, log_prob: np.ndarray, entropy: np.ndarray
) -> None:
    rows, width = logits.shape
    shifted = np.empty((width, TILE), np.float32)
    weight = np.empty((width, TILE), np.float32)
    clocks = np.empty((width, TILE), np.float32)
    top = np.empty(TILE, np.float32)
    log_total = np.empty(TILE, np.float32)
    inverse = np.empty(TILE, np.float32)
    entropies = np.empty(TILE, np.float32)
    chosen = np.empty(TILE, np.int32)
    for start in range(0, rows, TILE):
        end = min(start + TILE, rows)
        transpose(logits[start:end], shifted)
        transpose(uniform[start:end], clocks)
        softmax(shifted, weight, top, log_total, inverse, entropies, end - start)
        _race(clocks, weight, inverse, chosen, end - start)
        for b in range(end - start):
            action[start + b] = chosen[b]
            log_prob[start + b] = logits[start + b, chosen[b]] - top[b] - log_total[b]
            entropy[start + b] = entropies[b]

"""The CPU kernel of `seedflow.kernels.vtrace_loss`, compiled by Numba.

A tile of the batch's columns at a time goes backwards through the unroll: softmax, one step of the scan,
gradients. Comparisons are written so that a NaN passes through a clip.
"""

from __future__ import annotations

import numpy as np

from seedflow.kernels.elementary import exp, load, store
from seedflow.kernels.jit import cpu_kernel
from seedflow.kernels.softmax import TILE, softmax, transpose


@cpu_kernel
def loss_and_gradients(
    logits: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    behaviour: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    valid: np.ndarray | None,
    splits: np.ndarray,
    settings: np.ndarray,
    terms: np.ndarray,
    d_logits: np.ndarray,
    d_values: np.ndarray,
) -> int:
    """Fill the terms and the gradients; returns the place of an impossible action, or -1.

    `actions` are [T, B, K]; `settings` are rho_bar, c_bar, pg_rho_bar, trace_decay, value_cost and
    entropy_cost in the precision that is calculated with.
    """
    outside = _first_impossible(actions, splits)
    if outside >= 0:
        return outside
    steps, batch = rewards.shape
    width, parts = logits.shape[2], splits.shape[0]
    zero = settings.dtype.type(0.0)
    count = _count(valid, steps * batch)
    share = settings.dtype.type(1.0 / count)

    shifted = np.empty((width, TILE), values.dtype)
    weight = np.empty((width, TILE), values.dtype)
    log_total = np.empty((parts, TILE), values.dtype)
    inverse = np.empty((parts, TILE), values.dtype)
    entropy = np.empty((parts, TILE), values.dtype)
    top = np.empty(TILE, values.dtype)
    ok = np.ones(TILE, np.bool_)
    log_prob = np.empty(TILE, values.dtype)
    error = np.empty(TILE, values.dtype)  # vs_{t+1} - V_{t+1}, then vs_t - V_t
    advantage = np.empty(TILE, values.dtype)
    ratio = np.empty(TILE, values.dtype)
    sums = np.zeros((9, TILE), np.float64)

    for start in range(0, batch, TILE):
        end = min(start + TILE, batch)
        n = end - start
        error[:] = zero
        d_values[steps, start:end] = zero
        for b in range(start, end):
            for a in range(width):
                d_logits[steps, b, a] = store(zero, d_logits[steps, b, a])
        for i in range(steps):
            t = steps - 1 - i
            if valid is not None:  # decided when compiling, as None is a type of its own
                ok[:n] = valid[t, start:end]
            transpose(logits[t, start:end], shifted)
            log_prob[:] = zero
            offset = 0
            for k in range(parts):
                end_k = offset + splits[k]
                softmax(
                    shifted[offset:end_k], weight[offset:end_k], top, log_total[k], inverse[k], entropy[k], n
                )
                for b in range(n):
                    logit = load(logits[t, start + b, offset + actions[t, start + b, k]])
                    log_prob[b] += logit - top[b] - log_total[k, b]
                offset = end_k
            _step(
                log_prob,
                behaviour[t, start:end],
                rewards[t, start:end],
                discounts[t, start:end],
                values[t, start:end],
                values[t + 1, start:end],
                ok,
                settings,
                ratio,
                error,
                advantage,
            )
            _accumulate(ok, log_prob, values[t, start:end], error, advantage, ratio, settings, sums)
            for k in range(parts):
                _accumulate_entropy(ok, entropy[k], n, sums[8])
            _value_slopes(error, settings[4] * share, d_values[t, start:end])
            offset = 0
            for k in range(parts):
                end_k = offset + splits[k]
                _policy_slopes(
                    shifted[offset:end_k],
                    weight[offset:end_k],
                    log_total[k],
                    inverse[k],
                    entropy[k],
                    advantage,
                    settings[5],
                    share,
                    n,
                )
                for b in range(n):
                    weight[offset + actions[t, start + b, k], b] -= advantage[b] * share
                offset = end_k
            _write_back(weight, ok, d_logits[t, start:end])
    _finish(sums, count, settings, terms)
    return -1


@cpu_kernel
def _first_impossible(actions: np.ndarray, splits: np.ndarray) -> int:
    """Return the first position in the flattened actions of one that has no logit, or -1."""
    steps, batch, parts = actions.shape
    for t in range(steps):
        for b in range(batch):
            for k in range(parts):
                if actions[t, b, k] < 0 or actions[t, b, k] >= splits[k]:
                    return int((t * batch + b) * parts + k)
    return -1


@cpu_kernel
def _count(valid: np.ndarray | None, size: int) -> int:
    """Return the number of valid transitions, at least 1."""
    if valid is None:
        return max(size, 1)
    count = 0
    for t in range(valid.shape[0]):
        for b in range(valid.shape[1]):
            count += valid[t, b]
    return max(count, 1)


@cpu_kernel
def _step(
    log_prob: np.ndarray,
    behaviour_t: np.ndarray,
    r_t: np.ndarray,
    discount_t: np.ndarray,
    v_t: np.ndarray,
    v_tp1: np.ndarray,
    ok: np.ndarray,
    settings: np.ndarray,
    ratio: np.ndarray,
    error: np.ndarray,
    advantage: np.ndarray,
) -> None:
    zero = settings.dtype.type(0.0)
    rho_bar, c_bar, pg_rho_bar, trace_decay = settings[0], settings[1], settings[2], settings[3]
    for b in range(r_t.shape[0]):
        ratio[b] = exp(log_prob[b] - behaviour_t[b])
    for b in range(r_t.shape[0]):
        ratio_t = ratio[b]
        rho = rho_bar if ratio_t > rho_bar else ratio_t
        c = trace_decay * (c_bar if ratio_t > c_bar else ratio_t)
        pg_rho = pg_rho_bar if ratio_t > pg_rho_bar else ratio_t
        delta = rho * (r_t[b] + discount_t[b] * v_tp1[b] - v_t[b])
        carry = discount_t[b] * c * error[b]
        carry = carry if discount_t[b] != zero else zero
        advantage_t = pg_rho * (r_t[b] + discount_t[b] * (v_tp1[b] + error[b]) - v_t[b])
        error[b] = (delta if ok[b] else zero) + carry
        advantage[b] = advantage_t if ok[b] else zero


@cpu_kernel
def _accumulate(
    ok: np.ndarray,
    log_prob: np.ndarray,
    v_t: np.ndarray,
    error: np.ndarray,
    advantage: np.ndarray,
    ratio: np.ndarray,
    settings: np.ndarray,
    sums: np.ndarray,
) -> None:
    rho_bar, c_bar = settings[0], settings[1]
    policy, error_squared, error_size, error_sum = sums[0], sums[1], sums[2], sums[3]
    vs_sum, vs_squared, rho_clipped, c_clipped = sums[4], sums[5], sums[6], sums[7]
    for b in range(v_t.shape[0]):
        policy[b] -= np.float64(log_prob[b] * advantage[b]) if ok[b] else 0.0
    for b in range(v_t.shape[0]):
        e = np.float64(error[b])
        error_squared[b] += e * e
        error_size[b] += abs(e)
        error_sum[b] += e
    for b in range(v_t.shape[0]):
        vs = np.float64(v_t[b] + error[b]) if ok[b] else 0.0
        vs_sum[b] += vs
        vs_squared[b] += vs * vs
    for b in range(v_t.shape[0]):
        one = 1.0 if ok[b] else 0.0
        rho_clipped[b] += one if ratio[b] > rho_bar else 0.0
        c_clipped[b] += one if ratio[b] > c_bar else 0.0


@cpu_kernel
def _accumulate_entropy(ok: np.ndarray, entropy: np.ndarray, n: int, sums: np.ndarray) -> None:
    for b in range(n):
        sums[b] += entropy[b] if ok[b] else entropy.dtype.type(0.0)


@cpu_kernel
def _value_slopes(error: np.ndarray, cost: float, d_v: np.ndarray) -> None:
    for b in range(d_v.shape[0]):
        d_v[b] = -cost * error[b]


@cpu_kernel
def _policy_slopes(
    shifted: np.ndarray,
    weight: np.ndarray,
    log_total: np.ndarray,
    inverse: np.ndarray,
    entropy: np.ndarray,
    advantage: np.ndarray,
    entropy_cost: float,
    share: float,
    n: int,
) -> None:
    """Overwrite the weights [A, n] by the slopes of the loss; what only the action taken has is left out."""
    for a in range(weight.shape[0]):
        for b in range(n):
            slope = advantage[b] + entropy_cost * (shifted[a, b] - log_total[b] + entropy[b])
            weight[a, b] *= inverse[b] * share * slope


@cpu_kernel
def _write_back(weight: np.ndarray, ok: np.ndarray, d_logits: np.ndarray) -> None:
    zero = weight.dtype.type(0.0)
    for b in range(d_logits.shape[0]):
        if ok[b]:
            for a in range(d_logits.shape[1]):
                d_logits[b, a] = store(weight[a, b], d_logits[b, a])
        else:
            for a in range(d_logits.shape[1]):
                d_logits[b, a] = store(zero, d_logits[b, a])


@cpu_kernel
def _finish(sums: np.ndarray, count: int, settings: np.ndarray, terms: np.ndarray) -> None:
    mean = np.zeros(9, np.float64)
    for k in range(9):
        for b in range(TILE):
            mean[k] += sums[k, b]
        mean[k] /= count
    policy, value, entropy = mean[0], 0.5 * mean[1], mean[8]
    residual, spread = mean[1] - mean[3] * mean[3], mean[5] - mean[4] * mean[4]
    terms[0] = policy + settings[4] * value - settings[5] * entropy
    terms[1] = policy
    terms[2] = value
    terms[3] = entropy
    terms[4] = mean[2]
    terms[5] = 1.0 - max(residual, 0.0) / (max(spread, 0.0) + 1e-8)
    terms[6] = mean[6]
    terms[7] = mean[7]

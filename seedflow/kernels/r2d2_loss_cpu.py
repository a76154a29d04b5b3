"""The CPU kernel of `seedflow.kernels.r2d2_loss`, compiled by Numba.

All sequences side by side: a step of the window is a loop over them that the compiler vectorizes.
"""

from __future__ import annotations

import numpy as np

from seedflow.kernels.jit import cpu_kernel


@cpu_kernel
def loss_and_gradient(
    q_online: np.ndarray,
    q_target: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    first: np.ndarray,
    weights: np.ndarray,
    burn_in: int,
    n_step: int,
    settings: np.ndarray,
    terms: np.ndarray,
    priorities: np.ndarray,
    td_errors: np.ndarray,
    d_q: np.ndarray,
) -> tuple[int, int]:
    """Fill terms, priorities, errors and gradient; returns the place of an impossible action, or -1.

    `settings` are discount, rescale_epsilon, eta and the smallest priority in the precision that is
    calculated with.
    """
    indices, batch, width = q_online.shape
    for t in range(indices):
        for b in range(batch):
            if actions[t, b] < 0 or actions[t, b] >= width:
                return t, b
    real = settings.dtype.type
    zero, discount, epsilon, eta, smallest = real(0.0), settings[0], settings[1], settings[2], settings[3]
    share = real(1.0 / max(batch, 1))

    best = np.empty((indices, batch), td_errors.dtype)
    for t in range(burn_in, indices):
        _best(q_online[t], q_target[t], best[t])
        _inverse_rescale(best[t], epsilon)

    td_errors[:] = zero
    d_q[:] = zero
    value = np.empty(batch, td_errors.dtype)
    target = np.empty(batch, td_errors.dtype)
    largest = np.zeros(batch, td_errors.dtype)
    counts = np.zeros(batch, np.int64)
    sums = np.zeros((4, batch), np.float64)  # of squared errors, |errors|, values and targets
    for t in range(burn_in, indices - 1):
        reach = min(t + n_step, indices - 1)
        target[:] = best[reach]
        for i in range(reach - t):
            j = reach - 1 - i
            _step(
                rewards[j + 1],
                terminated[j + 1],
                truncated[j + 1],
                first[j + 1],
                best[j],
                best[j + 1],
                discount,
                target,
            )
        _rescale(target, epsilon)
        for b in range(batch):
            value[b] = q_online[t, b, actions[t, b]]
        _errors(target, value, first[t + 1], td_errors[t], largest, counts, sums)
        for b in range(batch):
            d_q[t, b, actions[t, b]] = -weights[b] * td_errors[t, b] * share

    mean = np.zeros(4, np.float64)
    count = 0
    for b in range(batch):
        mean[0] += 0.5 * np.float64(weights[b]) * sums[0, b] * share
        for k in range(1, 4):
            mean[k] += sums[k, b]
        count += counts[b]
        priority = eta * largest[b] + (real(1.0) - eta) * real(sums[1, b] / max(counts[b], 1))
        priorities[b] = smallest if priority < smallest else priority
    terms[0] = mean[0]
    for k in range(1, 4):
        terms[k] = mean[k] / max(count, 1)
    return -1, -1


@cpu_kernel
def _best(q_online: np.ndarray, q_target: np.ndarray, best: np.ndarray) -> None:
    """Look up the target network's value of the online network's action; not a number if that is none."""
    for b in range(best.shape[0]):
        top, action = q_online[b, 0], 0
        for a in range(1, q_online.shape[1]):
            q = q_online[b, a]
            better = (q > top) or (q != q)
            top = q if better else top
            action = a if better else action
        best[b] = q_target[b, action] + (top - top)


@cpu_kernel
def _rescale(x: np.ndarray, epsilon: float) -> None:
    one = x.dtype.type(1.0)
    for b in range(x.shape[0]):
        size = abs(x[b])
        x[b] = x[b] / (np.sqrt(size + one) + one) + epsilon * x[b]


@cpu_kernel
def _inverse_rescale(x: np.ndarray, epsilon: float) -> None:
    real = x.dtype.type
    two, four = real(2.0), real(4.0)
    c = real(1.0) + two * epsilon
    for b in range(x.shape[0]):
        size = abs(x[b])
        w = two * size / (np.sqrt(c * c + four * epsilon * size) + c)
        x[b] = np.copysign(w * (w + two), x[b])


@cpu_kernel
def _step(
    r: np.ndarray,
    terminates: np.ndarray,
    truncates: np.ndarray,
    begins: np.ndarray,
    best: np.ndarray,
    best_after: np.ndarray,
    discount: float,
    target: np.ndarray,
) -> None:
    """Put one more transition in front of the window."""
    zero = target.dtype.type(0.0)
    for b in range(target.shape[0]):
        after = best_after[b] if truncates[b] else target[b]
        after = zero if terminates[b] else after
        step = r[b] + discount * after
        target[b] = best[b] if begins[b] else step


@cpu_kernel
def _errors(
    target: np.ndarray,
    value: np.ndarray,
    begins: np.ndarray,
    errors: np.ndarray,
    largest: np.ndarray,
    counts: np.ndarray,
    sums: np.ndarray,
) -> None:
    zero = errors.dtype.type(0.0)
    squares, sizes, values, targets = sums[0], sums[1], sums[2], sums[3]
    for b in range(errors.shape[0]):
        error = zero if begins[b] else target[b] - value[b]
        size = abs(error)
        errors[b] = error
        largest[b] = largest[b] if largest[b] > size else size  # also a NaN
        counts[b] += 0 if begins[b] else 1
        squares[b] += np.float64(error) * np.float64(error)
        sizes[b] += size
        values[b] += zero if begins[b] else value[b]
        targets[b] += zero if begins[b] else target[b]

"""What the kernels compute, in plain numpy and float64; every twin is held to these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Arrays = list[np.ndarray]


def vtrace(
    log_rhos: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
) -> Arrays:
    """V-trace targets and advantages (Espeholt et al. 2018, arXiv 1802.01561)."""
    v = values.astype(np.float64)
    r, discount = rewards.astype(np.float64), discounts.astype(np.float64)
    ratio = np.exp(log_rhos.astype(np.float64))
    mask = np.ones(r.shape) if valid is None else valid.astype(np.float64)
    vs, advantages = v.copy(), np.zeros_like(r)
    error = np.zeros_like(v[0])
    for t in reversed(range(len(r))):
        delta = mask[t] * np.minimum(rho_bar, ratio[t]) * (r[t] + discount[t] * v[t + 1] - v[t])
        error = delta + discount[t] * trace_decay * np.minimum(c_bar, ratio[t]) * error
        vs[t] = v[t] + error
        target = r[t] + discount[t] * vs[t + 1]
        advantages[t] = mask[t] * np.minimum(pg_rho_bar, ratio[t]) * (target - v[t])
    return [vs[:-1], advantages]


def vtrace_loss(
    logits: np.ndarray,
    values: np.ndarray,
    actions: np.ndarray,
    behaviour_log_probs: np.ndarray,
    rewards: np.ndarray,
    discounts: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    rho_bar: float,
    c_bar: float,
    pg_rho_bar: float,
    trace_decay: float,
    value_cost: float,
    entropy_cost: float,
    splits: Sequence[int] | None = None,
) -> Arrays:
    """Loss, reported terms, and the gradients with respect to logits and values."""
    v, mask = values.astype(np.float64), np.ones(rewards.shape) if valid is None else valid.astype(np.float64)
    count = max(mask.sum(), 1.0)
    parts = [logits.shape[-1]] if splits is None else list(splits)
    chosen = actions.reshape(*rewards.shape, len(parts))
    log_prob, entropy = np.zeros(rewards.shape), np.zeros(rewards.shape)
    d_log_prob, d_entropy = np.zeros(logits.shape), np.zeros(logits.shape)
    offset = 0
    for k, width in enumerate(parts):
        part = slice(offset, offset + width)
        x = logits[:-1, :, part].astype(np.float64)
        x = x - x.max(-1, keepdims=True)
        p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
        log_p = np.where(p > 0, x, 0.0) - np.log(np.exp(x).sum(-1, keepdims=True))
        taken = np.eye(width)[chosen[..., k]]
        h = -(p * log_p).sum(-1, keepdims=True)
        log_prob += (taken * log_p).sum(-1)
        entropy += h[..., 0]
        d_log_prob[:-1, :, part] = taken - p
        d_entropy[:-1, :, part] = -p * (log_p + h)
        offset += width
    log_rhos = log_prob - behaviour_log_probs
    vs, advantages = vtrace(
        log_rhos,
        rewards,
        discounts,
        values,
        valid,
        rho_bar=rho_bar,
        c_bar=c_bar,
        pg_rho_bar=pg_rho_bar,
        trace_decay=trace_decay,
    )
    error = mask * (vs - v[:-1])

    def mean(x: np.ndarray) -> float:
        return float((mask * x).sum() / count)

    policy, value = mean(-log_prob * advantages), mean(0.5 * error**2)
    total = policy + value_cost * value - entropy_cost * mean(entropy)
    explained = 1.0 - mean((error - mean(error)) ** 2) / (mean((vs - mean(vs)) ** 2) + 1e-8)
    clipped = [mean(np.exp(log_rhos) > bar) for bar in (rho_bar, c_bar)]
    terms = [total, policy, value, mean(entropy), mean(np.abs(error)), explained, *clipped]
    d_logits, d_values = np.zeros(logits.shape), np.zeros(v.shape)
    slope = -advantages[..., None] * d_log_prob[:-1] - entropy_cost * d_entropy[:-1]
    d_logits[:-1] = mask[..., None] * slope / count
    d_values[:-1] = -value_cost * error / count
    return [np.array(total), np.array(terms), d_logits, d_values]


def gae(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    trace_decay: float,
) -> Arrays:
    """Generalized advantage estimates (Schulman et al. 2016, arXiv 1506.02438), and returns."""
    v, r, discount = (x.astype(np.float64) for x in (values, rewards, discounts))
    mask = np.ones(r.shape) if valid is None else valid.astype(np.float64)
    advantages, following = np.zeros_like(r), np.zeros_like(v[0])
    for t in reversed(range(len(r))):
        delta = mask[t] * (r[t] + discount[t] * v[t + 1] - v[t])
        following = advantages[t] = delta + discount[t] * trace_decay * following
    return [advantages, advantages + v[:-1]]


def n_step(
    rewards: np.ndarray,
    discounts: np.ndarray,
    values: np.ndarray,
    valid: np.ndarray | None = None,
    *,
    n: int,
) -> Arrays:
    """Returns over n steps, one transition after the other."""
    v, r, discount = (x.astype(np.float64) for x in (values, rewards, discounts))
    mask = np.ones(r.shape, np.bool_) if valid is None else valid
    returns = np.zeros_like(r)
    for t in range(len(r)):
        factor, going = np.ones_like(r[t]), np.ones(r[t].shape, np.bool_)
        for j in range(t, min(t + n, len(r))):
            stops = going & ~mask[j]
            returns[t] += np.where(stops, factor * v[j], 0.0)
            going = going & mask[j]
            returns[t] += np.where(going, factor * r[j], 0.0)
            factor = factor * discount[j]
        returns[t] += np.where(going, factor * v[min(t + n, len(r))], 0.0)
    return [returns]


def rescale(x: np.ndarray, epsilon: float) -> np.ndarray:
    """h of Pohlen et al. 2018, arXiv 1805.11593."""
    return np.sign(x) * np.expm1(0.5 * np.log1p(np.abs(x))) + epsilon * x


def inverse_rescale(x: np.ndarray, epsilon: float) -> np.ndarray:
    """The inverse of h: with u = sqrt(|y| + 1) - 1, h(y) = |x| is a quadratic equation in u."""
    size, c = np.abs(x), 1.0 + 2.0 * epsilon
    u = c * np.expm1(0.5 * np.log1p(4.0 * epsilon * size / c**2)) / (2.0 * epsilon) if epsilon else size
    return np.sign(x) * u * (u + 2.0)


def r2d2_loss(
    q_online: np.ndarray,
    q_target: np.ndarray,
    actions: np.ndarray,
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    first: np.ndarray,
    weights: np.ndarray,
    *,
    burn_in: int,
    n_step: int,
    discount: float,
    rescale_epsilon: float,
    eta: float,
) -> Arrays:
    """Loss, reported terms, priorities, TD errors and the gradient."""
    indices, batch = actions.shape
    greedy = q_online.argmax(-1) if q_online.size else np.zeros(actions.shape, np.int64)
    chosen = np.take_along_axis(q_target.astype(np.float64), greedy[..., None], -1)[..., 0]
    best = inverse_rescale(chosen, rescale_epsilon)
    q = np.take_along_axis(q_online.astype(np.float64), actions[..., None], -1)[..., 0]
    targets, td_errors, valid = np.zeros(q.shape), np.zeros(q.shape), np.zeros(q.shape, np.bool_)
    for t in range(burn_in, indices - 1):
        y, factor, going = np.zeros(batch), 1.0, np.ones(batch, np.bool_)  # going: in the window so far
        for j in range(t + 1, min(t + n_step, indices - 1) + 1):
            y += np.where(going & first[j], factor * best[j - 1], 0.0)
            going &= ~first[j]
            y += np.where(going, factor * rewards[j], 0.0)
            factor *= discount
            y += np.where(going & truncated[j] & ~terminated[j], factor * best[j], 0.0)
            going &= ~(terminated[j] | truncated[j])
        y += np.where(going, factor * best[min(t + n_step, indices - 1)], 0.0)
        targets[t], valid[t] = rescale(y, rescale_epsilon), ~first[t + 1]
    td_errors = np.where(valid, targets - q, 0.0)
    size, counts = np.abs(td_errors), valid.sum(axis=0)
    means = size.sum(axis=0) / np.maximum(counts, 1)
    priorities = np.maximum(eta * size.max(axis=0) + (1.0 - eta) * means, 1e-6)
    total = (weights * 0.5 * (td_errors**2).sum(axis=0)).sum() / max(batch, 1)
    reported = [(valid * x).sum() / max(valid.sum(), 1) for x in (size, q, targets)]
    d_q = np.zeros(q_online.shape)
    np.put_along_axis(d_q, actions[..., None], (-weights * td_errors / max(batch, 1))[..., None], -1)
    return [np.array(total), np.array([total, *reported]), priorities, td_errors, d_q]


def sample_categorical(logits: np.ndarray, random: np.ndarray) -> Arrays:
    """Actions by an exponential race, their log-probabilities, and entropies."""
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    log_p = np.where(p > 0, x, 0.0) - np.log(np.exp(x).sum(-1, keepdims=True))
    with np.errstate(divide="ignore"):
        clocks = -np.log(random.astype(np.float64))
    action = np.where(p > 0, p / clocks, -1.0).argmax(-1)
    return [action, np.take_along_axis(log_p, action[..., None], -1)[..., 0], -(p * log_p).sum(-1)]


def rmsprop_step(
    parameter: np.ndarray,
    gradient: np.ndarray,
    square_average: np.ndarray,
    *,
    learning_rate: float,
    decay: float,
    epsilon: float,
    clip_norm: float | None = None,
) -> Arrays:
    """Parameter and running mean after a step of RMSProp, and the gradient's norm."""
    g, norm = clipped(gradient, clip_norm)
    square = decay * square_average.astype(np.float64) + (1.0 - decay) * g**2
    return [parameter - learning_rate * g / (np.sqrt(square) + epsilon), square, norm]


def adam_step(
    parameter: np.ndarray,
    gradient: np.ndarray,
    average: np.ndarray,
    square_average: np.ndarray,
    *,
    step: int,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    clip_norm: float | None = None,
) -> Arrays:
    """Parameter and running means after a step of Adam, and the gradient's norm."""
    g, norm = clipped(gradient, clip_norm)
    mean = betas[0] * average.astype(np.float64) + (1.0 - betas[0]) * g
    square = betas[1] * square_average.astype(np.float64) + (1.0 - betas[1]) * g**2
    root = np.sqrt(square / (1.0 - betas[1] ** step)) + epsilon
    return [parameter - learning_rate * mean / (1.0 - betas[0] ** step) / root, mean, square, norm]


def clipped(gradient: np.ndarray, clip_norm: float | None) -> tuple[np.ndarray, np.ndarray]:
    """The gradient scaled down to a norm, and its norm before."""
    g = gradient.astype(np.float64)
    norm = np.sqrt((g**2).sum())
    return g * min(1.0, np.inf if clip_norm is None else clip_norm / (norm + 1e-6)), np.array(norm)


def recurrent_gather(tables: Sequence[np.ndarray], rows: np.ndarray, first: np.ndarray) -> Arrays:
    """Rows of the tables; zeros where an episode begins."""
    batch = [table[rows] for table in tables]
    for state in batch:
        state[first] = 0
    return batch


def recurrent_scatter(tables: Sequence[np.ndarray], rows: np.ndarray, values: Sequence[np.ndarray]) -> Arrays:
    """The tables after the batch was written to its rows."""
    after = [table.copy() for table in tables]
    for table, value in zip(after, values, strict=True):
        for b, row in enumerate(rows):
            table[row] = value[b]
    return after


def unroll_append(
    fields: Sequence[np.ndarray], slots: np.ndarray, times: np.ndarray, values: Sequence[np.ndarray]
) -> Arrays:
    """The fields after one index of each unroll was written."""
    after = [field.copy() for field in fields]
    for field, value in zip(after, values, strict=True):
        for i, (slot, time) in enumerate(zip(slots, times, strict=True)):
            field[slot, time] = value[i]
    return after


def unroll_gather(fields: Sequence[np.ndarray], slots: np.ndarray) -> Arrays:
    """The unrolls of some slots, time-major."""
    return [field[slots].swapaxes(0, 1) for field in fields]


def slab_gather(fields: Sequence[np.ndarray], blocks: np.ndarray, rows: np.ndarray) -> Arrays:
    """Rows of some blocks."""
    return [field[blocks, rows] for field in fields]


def sum_tree_set(tree: np.ndarray, index: np.ndarray, value: np.ndarray) -> Arrays:
    """The tree after the leaves were set one after the other."""
    width = len(tree) // 2
    leaves = tree[width : width + int(tree[0])].copy()
    for i, v in zip(index, value, strict=True):
        leaves[i] = v
    return [sum_tree(leaves)]


def sum_tree_sample(tree: np.ndarray, uniform: np.ndarray) -> Arrays:
    """The leaves that a walk down from the root finds, and their values."""
    width = len(tree) // 2
    index, value = np.zeros(len(uniform), np.int64), np.zeros(len(uniform))
    for k, u in enumerate(uniform):
        target, node = (k + u) / len(uniform) * tree[1], 1
        while node < width:
            left, right = tree[2 * node], tree[2 * node + 1]
            if target < left or right == 0.0:
                node = 2 * node
            else:
                node, target = 2 * node + 1, target - left
        index[k], value[k] = node - width, tree[node]
    return [index, value]


def sum_tree(leaves: np.ndarray) -> np.ndarray:
    """The whole tree over some leaves, built from below."""
    width = 1
    while width < len(leaves):
        width *= 2
    levels = [np.concatenate([leaves, np.zeros(width - len(leaves))])]
    while len(levels[0]) > 1:
        levels.insert(0, levels[0][0::2] + levels[0][1::2])
    return np.concatenate([np.array([float(len(leaves))]), *levels])

"""Any shape, mask and magnitude: float32 kernels stay beside the float64 reference.

The error allowed is 1e-5 of the largest magnitude in a column of the batch, its inputs included: where
large numbers cancel, no more can be had in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedflow import kernels

from . import reference

RELATIVE = 1e-5
TINY = 1e-42  # below the normal numbers precision is lost by definition

few = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
steps, batches, widths = st.integers(1, 200), st.integers(1, 300), st.integers(1, 18)
seeds = st.integers(0, 2**32 - 1)
magnitudes = st.sampled_from([1.0, 1e-3, 1e4, 1e-40])


def numbers(rng: np.random.Generator, shape: tuple[int, ...], magnitude: float) -> np.ndarray:
    """Random numbers about a magnitude; some of them zero."""
    x = magnitude * rng.normal(size=shape)
    return np.where(rng.random(shape) < 0.1, 0.0, x).astype(np.float32)


def flags(rng: np.random.Generator, shape: tuple[int, int], share: float) -> np.ndarray:
    """Random flags; in every seventh column or so all of them are set."""
    return (rng.random(shape) < share) | (rng.random(shape[1]) < 0.15)


def close(
    results: Sequence[torch.Tensor], expected: Sequence[np.ndarray], inputs: Sequence[np.ndarray]
) -> None:
    """Compare arrays ``[T, B, ...]`` column by column."""
    for result, wanted in zip(results, expected, strict=True):
        size = np.abs(wanted).max(axis=0)
        for array in inputs:
            size = np.maximum(size, np.abs(array).max(axis=0).reshape(-1, *[1] * (size.ndim - 1)))
        error = np.abs(result.detach().numpy() - wanted).max(axis=0)
        worst = (error - RELATIVE * size).argmax()
        assert (error <= RELATIVE * size + TINY).all(), (worst, error.flat[worst], size.flat[worst])


def unrolls(
    rng: np.random.Generator, shape: tuple[int, int], magnitude: float, ends: float, masked: bool
) -> dict[str, Any]:
    first, terminated = flags(rng, shape, ends), flags(rng, shape, ends)
    discounts = np.where(terminated | (first & masked), 0.0, 0.99).astype(np.float32)
    return {
        "rewards": numbers(rng, shape, magnitude),
        "discounts": discounts,
        "values": numbers(rng, (shape[0] + 1, shape[1]), magnitude),
        "valid": ~first if masked else None,
    }


def as_tensors(arrays: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in arrays.items()}


unroll = {
    "t": steps,
    "b": batches,
    "seed": seeds,
    "magnitude": magnitudes,
    "ends": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "masked": st.booleans(),
}


@few
@given(
    **unroll,
    spread=st.sampled_from([0.1, 3.0, 80.0]),
    clips=st.tuples(*[st.floats(0.2, 4.0)] * 3),
    trace_decay=st.floats(0.0, 1.0),
)
def test_vtrace(
    t: int,
    b: int,
    seed: int,
    magnitude: float,
    ends: float,
    masked: bool,
    spread: float,
    clips: tuple[float, float, float],
    trace_decay: float,
) -> None:
    rng = np.random.default_rng(seed)
    inputs = unrolls(rng, (t, b), magnitude, ends, masked)
    inputs["log_rhos"] = rng.uniform(-spread, spread, (t, b)).astype(np.float32)
    # With ratios above 1 a trace may grow without bound, so that c_bar stays below.
    bars = dict(zip(("rho_bar", "pg_rho_bar"), clips[:2], strict=True), c_bar=min(clips[2], 1.0))
    results = kernels.vtrace(**as_tensors(inputs), **bars, trace_decay=trace_decay)
    expected = reference.vtrace(**inputs, **bars, trace_decay=trace_decay)
    close(results, expected, [inputs["rewards"], inputs["values"]])


@few
@given(**unroll, trace_decay=st.floats(0.0, 1.0))
def test_gae(
    t: int, b: int, seed: int, magnitude: float, ends: float, masked: bool, trace_decay: float
) -> None:
    inputs = unrolls(np.random.default_rng(seed), (t, b), magnitude, ends, masked)
    results = kernels.gae(**as_tensors(inputs), trace_decay=trace_decay)
    expected = reference.gae(**inputs, trace_decay=trace_decay)
    close(results, expected, [inputs["rewards"], inputs["values"]])


@few
@given(**unroll, n=st.integers(1, 12))
def test_n_step(t: int, b: int, seed: int, magnitude: float, ends: float, masked: bool, n: int) -> None:
    inputs = unrolls(np.random.default_rng(seed), (t, b), magnitude, ends, masked)
    result = kernels.n_step(**as_tensors(inputs), n=n)
    close([result], reference.n_step(**inputs, n=n), [inputs["rewards"], inputs["values"]])


@few
@given(
    **unroll,
    splits=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    spread=st.sampled_from([0.1, 3.0, 40.0]),
    impossible=st.sampled_from([0.0, 0.4]),
)
def test_vtrace_loss(
    t: int,
    b: int,
    seed: int,
    magnitude: float,
    ends: float,
    masked: bool,
    splits: list[int],
    spread: float,
    impossible: float,
) -> None:
    rng = np.random.default_rng(seed)
    inputs = unrolls(rng, (t, b), magnitude, ends, masked)
    inputs |= random_policy(rng, (t, b), tuple(splits), spread, impossible)
    costs = {"value_cost": 0.5, "entropy_cost": 0.01}
    clips = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "trace_decay": 1.0}
    arguments = as_tensors(inputs)
    sources = [arguments[name].requires_grad_() for name in ("logits", "values")]
    loss = kernels.vtrace_loss(**arguments, **clips, **costs)
    gradients = torch.autograd.grad(loss.total, sources)
    _, terms, *slopes = reference.vtrace_loss(**inputs, **clips, **costs)
    count = t * b if inputs["valid"] is None else max(inputs["valid"].sum(), 1)
    sizes = [inputs["rewards"] / count, inputs["values"] / count]
    bonus = np.full((1, b), costs["entropy_cost"] / count)  # near a uniform policy its slope is all rounding
    close(gradients[:1], slopes[:1], [*sizes, bonus])
    close(gradients[1:], slopes[1:], sizes)
    error, size = np.abs(loss.terms.numpy() - terms), np.abs(terms) + (1.0 + spread) * magnitude
    near = 0.05  # nats: the entropy of an almost certain choice is what rounding leaves of 1 - 1
    size[kernels.VTRACE_LOSS_TERMS.index("entropy")] += near
    size[kernels.VTRACE_LOSS_TERMS.index("total")] += costs["entropy_cost"] * near
    explained, shares = kernels.VTRACE_LOSS_TERMS.index("explained_variance"), slice(-2, None)
    error[explained] *= magnitude > 1e-20  # what variance there is drowns in the 1e-8 of its formula
    size[shares] += 1e5 * 2.0 / count  # a ratio on its clip may fall to either side
    assert (error <= RELATIVE * size + TINY).all(), dict(zip(kernels.VTRACE_LOSS_TERMS, error, strict=True))


def random_policy(
    rng: np.random.Generator,
    shape: tuple[int, int],
    splits: tuple[int, ...],
    spread: float,
    impossible: float,
) -> dict[str, Any]:
    """Logits some of which are -inf, actions that are possible, and log-probabilities to go with them."""
    logits = rng.uniform(-spread, spread, (shape[0] + 1, shape[1], sum(splits))).astype(np.float32)
    actions = np.stack([rng.integers(0, width, shape) for width in splits], axis=-1)
    barred, offset = rng.random(logits.shape) < impossible, 0
    for k, width in enumerate(splits):
        np.put_along_axis(barred[:-1, :, offset : offset + width], actions[..., k : k + 1], False, axis=-1)
        barred[-1, :, offset] = False
        offset += width
    logits[barred] = -np.inf
    behaviour = rng.uniform(-spread - 4.0, 0.0, shape).astype(np.float32)
    return {"logits": logits, "actions": actions, "splits": splits, "behaviour_log_probs": behaviour}


@few
@given(
    t=st.integers(2, 200),
    b=batches,
    a=widths,
    seed=seeds,
    magnitude=magnitudes,
    ends=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    burn_in=st.floats(0.0, 0.99),
    n_step=st.integers(1, 12),
    rescale_epsilon=st.sampled_from([1e-3, 1e-2]),
)
def test_r2d2_loss(
    t: int,
    b: int,
    a: int,
    seed: int,
    magnitude: float,
    ends: float,
    burn_in: float,
    n_step: int,
    rescale_epsilon: float,
) -> None:
    rng = np.random.default_rng(seed)
    q_online, q_target = (numbers(rng, (t, b, a), 0.01 * magnitude) for _ in range(2))
    inputs = {
        "q_online": q_online,
        "q_target": q_target,
        "actions": rng.integers(0, a, (t, b)),
        "rewards": numbers(rng, (t, b), magnitude),
        **{name: flags(rng, (t, b), ends) for name in ("terminated", "truncated", "first")},
        "weights": rng.random(b).astype(np.float32),
    }
    settings = {"burn_in": int(burn_in * (t - 1)), "n_step": n_step, "discount": 0.997}
    settings |= {"rescale_epsilon": rescale_epsilon, "eta": 0.9}
    arguments = as_tensors(inputs)
    loss = kernels.r2d2_loss(**{**arguments, "q_online": arguments["q_online"].requires_grad_()}, **settings)
    (gradient,) = torch.autograd.grad(loss.total, arguments["q_online"])
    total, terms, priorities, td_errors, d_q = reference.r2d2_loss(**inputs, **settings)
    close([loss.td_errors], [td_errors], [q_online.max(axis=-1)])
    close([gradient], [d_q], [q_online.max(axis=-1) / b])
    size = np.abs(td_errors).max(axis=0) + np.abs(q_online).max(axis=(0, 2))
    assert (np.abs(loss.priorities.numpy() - priorities) <= RELATIVE * size + 1e-12).all()
    assert abs(loss.total.item() - total) <= RELATIVE * t * (size**2).mean() + TINY
    assert (np.abs(loss.terms.numpy() - terms)[1:] <= RELATIVE * size.max() + TINY).all()


@few
@given(
    rows=st.integers(1, 300),
    a=widths,
    seed=seeds,
    spread=st.sampled_from([1e-40, 0.1, 3.0, 80.0]),
    impossible=st.sampled_from([0.0, 0.4]),
)
def test_sample_categorical(rows: int, a: int, seed: int, spread: float, impossible: float) -> None:
    rng = np.random.default_rng(seed)
    policy = random_policy(rng, (rows, 1), (a,), spread, impossible)
    logits, uniform = policy["logits"][1:, 0], rng.random((rows, a), np.float32)
    sample = kernels.sample_categorical(torch.from_numpy(logits), torch.from_numpy(uniform))
    action, log_prob, entropy = reference.sample_categorical(logits, uniform)
    chosen = sample.action.numpy()
    assert np.isfinite(logits[np.arange(rows), chosen]).all()
    same = chosen == action
    assert same.mean() >= 1.0 - 1.5 / rows  # a race may be too close to call
    assert (
        np.abs(sample.log_prob.numpy() - log_prob)[same] <= RELATIVE * (1.0 + np.abs(log_prob[same]))
    ).all()
    assert (np.abs(sample.entropy.numpy() - entropy) <= RELATIVE * (1.0 + entropy)).all()

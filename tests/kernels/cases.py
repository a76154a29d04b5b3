"""The cases that every twin of every kernel has to pass, whatever device it is for.

A case makes its inputs as numpy arrays from a seeded generator; `run` hands them to a kernel's public
function as tensors of a device, `expected` to the float64 reference. To hold another twin to all of
them, parametrize over `CASES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from seedflow import kernels

from . import reference

DTYPES = ("float32", "uint8", "int32", "int64", "bool", "int16", "int8", "float16", "float64")
IN_PLACE: dict[str, tuple[str, ...]] = {  # with the arguments that are changed
    "recurrent_scatter": ("tables",),
    "unroll_append": ("fields",),
    "sum_tree_set": ("tree",),
    "rmsprop_step": ("parameter", "square_average"),
    "adam_step": ("parameter", "average", "square_average"),
}
RESULT_TYPES = {
    "vtrace": kernels.VTraceReturns._make,
    "gae": kernels.GaeReturns._make,
    "sample_categorical": kernels.CategoricalSample._make,
    "sum_tree_sample": kernels.SumTreeSample._make,
}
LOSSES = {
    "vtrace_loss": ("logits", "values"),
    "r2d2_loss": ("q_online",),
}  # with the inputs that have a gradient

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Inputs of one call, and how far from the reference its results may be (0: equal)."""

    operation: str
    name: str
    make: Callable[[np.random.Generator], Inputs]
    relative: float = 0.0
    absolute: float = 0.0

    def __str__(self) -> str:
        return f"{self.operation}-{self.name}"

    def inputs(self) -> Inputs:
        """Fresh inputs, the same at every call."""
        return self.make(np.random.default_rng(20))

    def expected(self) -> list[np.ndarray]:
        """The reference's results."""
        return getattr(reference, self.operation)(**self.inputs())

    def check(self, results: list[np.ndarray]) -> None:
        """Compare results to the reference's."""
        expected = self.expected()
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected, strict=True):
            assert result.shape == wanted.shape
            if self.relative or self.absolute:
                np.testing.assert_allclose(result, wanted, rtol=self.relative, atol=self.absolute)
            else:
                assert result.dtype == wanted.dtype
                np.testing.assert_array_equal(result, wanted)


class BFloat16(np.ndarray):
    """A float32 array whose values bfloat16 can hold, and which a kernel gets as such."""


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest values that bfloat16 can hold."""
    return torch.from_numpy(values).to(torch.bfloat16).float().numpy().view(BFloat16)


def tensors(inputs: Inputs, device: str) -> Inputs:
    """Arrays as tensors that share their memory (CPU) or copy it to a device."""

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            tensor = torch.from_numpy(value)
            if isinstance(value, BFloat16):
                tensor = tensor.to(torch.bfloat16)
            if device == "cpu":
                return tensor
            copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            return copy.copy_(tensor)  # with the gaps between its rows
        if isinstance(value, list):
            return [convert(item) for item in value]
        return value

    return {name: convert(value) for name, value in inputs.items()}


def run(case: Case, device: str, *, with_out: bool = False) -> list[np.ndarray]:
    """Call the case's kernel and return its results.

    In-place kernels have the changed arrays as results, losses have their gradients as further ones.
    """
    arguments = tensors(case.inputs(), device)
    function = getattr(kernels, case.operation)
    if case.operation in IN_PLACE:
        results = changed(case, arguments, function(**arguments))
    elif case.operation in LOSSES:
        results = with_gradients(case, function, arguments)
    elif with_out:
        results = function(**arguments)
        if isinstance(results, torch.Tensor):
            out: Any = torch.full_like(results, 7)
            assert function(**arguments, out=out) is out
            results = [out]
        else:
            out = RESULT_TYPES.get(case.operation, list)(torch.full_like(result, 7) for result in results)
            returned = function(**arguments, out=out)
            assert all(a is b for a, b in zip(returned, out, strict=True))
            results = out
    else:
        results = function(**arguments)
        results = [results] if isinstance(results, torch.Tensor) else results
    return [result.cpu().numpy() for result in results]


def changed(case: Case, arguments: Inputs, returned: torch.Tensor | None = None) -> list[torch.Tensor]:
    """The arrays that an in-place kernel was given to change, and what it returned beside that."""
    arrays = [arguments[name] for name in IN_PLACE[case.operation]]
    results = [x for item in arrays for x in (item if isinstance(item, list) else [item])]
    return results if returned is None else [*results, returned]


def with_gradients(case: Case, function: Callable[..., Any], arguments: Inputs) -> list[torch.Tensor]:
    """What a loss returns, then its gradients."""
    sources = [arguments[name].clone().requires_grad_() for name in LOSSES[case.operation]]
    results = function(**arguments | dict(zip(LOSSES[case.operation], sources, strict=True)))
    assert [result.requires_grad for result in results] == [True] + [False] * (len(results) - 1)
    gradients = torch.autograd.grad(results[0], sources)
    return [x.detach().float() if x.dtype is torch.bfloat16 else x.detach() for x in (*results, *gradients)]


def array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random content of any dtype."""
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        return rng.normal(size=shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def strided(
    rng: np.random.Generator, leading: tuple[int, ...], item: tuple[int, ...], dtype: str
) -> np.ndarray:
    """An array whose leading axes have gaps between them, like one field of a block of shared memory."""
    gapped = tuple(2 * size + 1 for size in leading)
    return array(rng, (*gapped, *item), dtype)[tuple(slice(1, None, 2) for _ in leading)]


def make_vtrace(
    rng: np.random.Generator,
    shape: tuple[int, ...] = (20, 8),
    *,
    masked: bool = True,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    trace_decay: float = 1.0,
    spread: float = 1.0,
) -> Inputs:
    """An unroll with terminations, and pairs of indices that are no transition if `masked`."""
    first = rng.random(shape) < 0.15
    terminated = rng.random(shape) < 0.15
    valid = ~first if masked else None
    discounts = 0.97 * ~terminated * (~first if masked else 1.0)
    return {
        "log_rhos": rng.normal(scale=spread, size=shape).astype(np.float32),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "discounts": discounts.astype(np.float32),
        "values": rng.normal(size=(shape[0] + 1, *shape[1:])).astype(np.float32),
        "valid": valid,
        "rho_bar": rho_bar,
        "c_bar": c_bar,
        "pg_rho_bar": pg_rho_bar,
        "trace_decay": trace_decay,
    }


def make_gae(rng: np.random.Generator, *, trace_decay: float = 0.95, **settings: Any) -> Inputs:
    inputs = make_vtrace(rng, **settings)
    arrays = {name: inputs[name] for name in ("rewards", "discounts", "values", "valid")}
    return {**arrays, "trace_decay": trace_decay}


def make_n_step(rng: np.random.Generator, *, n: int = 3, **settings: Any) -> Inputs:
    inputs = make_vtrace(rng, **settings)
    return {**{name: inputs[name] for name in ("rewards", "discounts", "values", "valid")}, "n": n}


def make_vtrace_loss(
    rng: np.random.Generator,
    shape: tuple[int, int] = (20, 8),
    actions: int = 5,
    *,
    masked: bool = True,
    spread: float = 1.0,
    splits: tuple[int, ...] | None = None,
    impossible: float = 0.0,
    low_precision: bool = False,
    value_cost: float = 0.5,
    entropy_cost: float = 0.02,
    **settings: Any,
) -> Inputs:
    """An unroll with logits; `impossible` is the share of actions whose logit is -inf."""
    inputs = make_vtrace(rng, shape, masked=masked, **settings)
    parts = (actions,) if splits is None else splits
    chosen = np.stack([rng.integers(0, width, shape) for width in parts], axis=-1)
    logits = rng.normal(scale=spread, size=(shape[0] + 1, shape[1], sum(parts))).astype(np.float32)
    barred, offset = rng.random(logits.shape) < impossible, 0
    for k, width in enumerate(parts):
        part = barred[:-1, :, offset : offset + width]
        np.put_along_axis(part, chosen[..., k : k + 1], False, axis=-1)
        barred[-1, :, offset] = False
        offset += width
    logits[barred] = -np.inf
    del inputs["log_rhos"]
    return {
        **inputs,
        "logits": bfloat16(logits) if low_precision else logits,
        "actions": chosen[..., 0] if splits is None else chosen,
        "behaviour_log_probs": -2.0 * rng.random(shape).astype(np.float32),
        "value_cost": value_cost,
        "entropy_cost": entropy_cost,
        "splits": splits,
    }


def make_r2d2_loss(
    rng: np.random.Generator,
    shape: tuple[int, int] = (15, 8),
    actions: int = 4,
    *,
    burn_in: int = 4,
    n_step: int = 5,
    ends: float = 0.1,
    begins: float = 0.1,
    scale: float = 3.0,
    rescale_epsilon: float = 1e-3,
) -> Inputs:
    """Sequences in which flags stand anywhere; most ends are followed by a beginning."""
    ended = rng.random(shape) < ends
    first = rng.random(shape) < 0.3 * begins
    first[1:] |= ended[:-1] & (rng.random((shape[0] - 1, shape[1])) < 0.9)
    q_online = rng.normal(scale=scale, size=(*shape, actions)).astype(np.float32)
    return {
        "q_online": q_online,
        "q_target": q_online + rng.normal(size=q_online.shape).astype(np.float32),
        "actions": rng.integers(0, actions, shape),
        "rewards": (scale * rng.normal(size=shape)).astype(np.float32),
        "terminated": ended & (rng.random(shape) < 0.6),
        "truncated": ended & (rng.random(shape) < 0.6),
        "first": first,
        "weights": rng.random(shape[1]).astype(np.float32),
        "burn_in": burn_in,
        "n_step": n_step,
        "discount": 0.97,
        "rescale_epsilon": rescale_epsilon,
        "eta": 0.9,
    }


def make_sample_categorical(
    rng: np.random.Generator, shape: tuple[int, ...], spread: float = 1.0, impossible: float = 0.0
) -> Inputs:
    logits = rng.normal(scale=spread, size=shape).astype(np.float32)
    barred = rng.random(shape) < impossible
    np.put_along_axis(barred, rng.integers(0, shape[-1], (*shape[:-1], 1)), False, axis=-1)
    logits[barred] = -np.inf
    return {"logits": logits, "random": rng.random(shape, np.float32)}


def make_rmsprop_step(
    rng: np.random.Generator, size: int = 100, scale: float = 1.0, clip_norm: float | None = None
) -> Inputs:
    return {
        "parameter": rng.normal(size=size).astype(np.float32),
        "gradient": (scale * rng.normal(size=size)).astype(np.float32),
        "square_average": (scale * rng.random(size)).astype(np.float32),
        "learning_rate": 0.02,
        "decay": 0.95,
        "epsilon": 1e-3,
        "clip_norm": clip_norm,
    }


def make_adam_step(rng: np.random.Generator, *, step: int = 4, **settings: Any) -> Inputs:
    inputs = make_rmsprop_step(rng, **settings)
    del inputs["decay"]
    average = rng.normal(size=inputs["parameter"].shape).astype(np.float32)
    return {**inputs, "average": average, "step": step, "betas": (0.8, 0.99)}


@dataclass(frozen=True)
class Arrays:
    """Shapes of the arrays that one move touches: an item shape and a dtype for each of them."""

    items: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    gaps: bool = False

    def make(self, rng: np.random.Generator, *leading: int) -> list[np.ndarray]:
        pairs = zip(self.items, self.dtypes, strict=True)
        if self.gaps:
            return [strided(rng, leading, item, dtype) for item, dtype in pairs]
        return [array(rng, (*leading, *item), dtype) for item, dtype in pairs]


def make_recurrent_gather(rng: np.random.Generator, arrays: Arrays, size: int, batch: int) -> Inputs:
    return {
        "tables": arrays.make(rng, size),
        "rows": rng.integers(0, size, batch),
        "first": rng.random(batch) < 0.3,
    }


def make_recurrent_scatter(rng: np.random.Generator, arrays: Arrays, size: int, batch: int) -> Inputs:
    return {
        "tables": arrays.make(rng, size),
        "rows": rng.permutation(size)[:batch],
        "values": arrays.make(rng, batch),
    }


def make_unroll_append(rng: np.random.Generator, arrays: Arrays, size: int, batch: int, steps: int) -> Inputs:
    return {
        "fields": arrays.make(rng, size, steps + 1),
        "slots": rng.permutation(size)[:batch],
        "times": rng.integers(0, steps + 1, batch),
        "values": arrays.make(rng, batch),
    }


def make_unroll_gather(rng: np.random.Generator, arrays: Arrays, size: int, batch: int, steps: int) -> Inputs:
    return {"fields": arrays.make(rng, size, steps + 1), "slots": rng.integers(0, size, batch)}


def make_slab_gather(rng: np.random.Generator, arrays: Arrays, size: int, batch: int, rows: int) -> Inputs:
    return {
        "fields": arrays.make(rng, size, rows),
        "blocks": rng.integers(0, size, batch),
        "rows": rng.integers(0, rows, batch),
    }


def vtrace_case(name: str, **settings: Any) -> Case:
    return Case("vtrace", name, partial(make_vtrace, **settings), relative=2e-5, absolute=2e-5)


def make_leaves(rng: np.random.Generator, capacity: int, zeros: float) -> np.ndarray:
    """Values of a tree's leaves over many orders of magnitude, some share of them zero."""
    leaves = np.exp(rng.normal(scale=3.0, size=capacity))
    return np.where(rng.random(capacity) < zeros, 0.0, leaves)


def make_sum_tree_set(rng: np.random.Generator, capacity: int, count: int, zeros: float = 0.1) -> Inputs:
    return {
        "tree": reference.sum_tree(make_leaves(rng, capacity, zeros)),
        "index": rng.integers(0, capacity, count),
        "value": make_leaves(rng, count, zeros),
    }


def make_sum_tree_sample(
    rng: np.random.Generator, capacity: int, count: int, zeros: float = 0.1, uniform: float | None = None
) -> Inputs:
    drawn = rng.random(count)
    return {
        "tree": reference.sum_tree(make_leaves(rng, capacity, zeros)),
        "uniform": drawn if uniform is None else np.full(count, uniform),
    }


def make_one_positive(rng: np.random.Generator, capacity: int, count: int, position: int) -> Inputs:
    leaves = np.zeros(capacity)
    leaves[position] = 1e-6
    return {"tree": reference.sum_tree(leaves), "uniform": rng.random(count)}


ITEMS = ((), (3,), (5, 4), (1,), (2, 1, 3), (0,), (7,), (16,), ())  # one for each of DTYPES
EVERY_DTYPE = Arrays(ITEMS, DTYPES)
WITH_GAPS = Arrays(ITEMS, DTYPES, gaps=True)
LSTM = Arrays(((256,), (256,)), ("float32", "float32"))
FRAMES = Arrays(((84, 84), ()), ("uint8", "float32"))
SMALL = Arrays(((3,),), ("float32",))
NOTHING = Arrays((), ())


def move_case(make: Callable[..., Inputs], name: str, arrays: Arrays, *sizes: int) -> Case:
    operation = make.__name__.removeprefix("make_")
    return Case(operation, name, lambda rng: make(rng, arrays, *sizes))


VTRACE_CASES = [
    vtrace_case("plain"),
    vtrace_case("all valid", masked=False),
    vtrace_case("one transition", shape=(1, 4)),
    vtrace_case("one column", shape=(20, 1)),
    vtrace_case("no column", shape=(3, 0)),
    vtrace_case("trailing axes", shape=(6, 3, 2, 5)),
    vtrace_case("odd width", shape=(7, 37)),
    vtrace_case("long", shape=(100, 16)),
    vtrace_case("wide", shape=(20, 260)),
    vtrace_case("clips apart", rho_bar=3.7, c_bar=0.8, pg_rho_bar=2.2),
    vtrace_case("lambda 0.9", trace_decay=0.9),
    vtrace_case("lambda 0", trace_decay=0.0),
    vtrace_case("far off policy", spread=30.0),
]


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "all valid": {"masked": False},
    "one transition": {"shape": (1, 4)},
    "one column": {"shape": (20, 1)},
    "no column": {"shape": (3, 0)},
    "trailing axes": {"shape": (6, 3, 2, 5)},
    "odd width": {"shape": (7, 37)},
    "wide": {"shape": (20, 260)},
}
RETURNS_CASES = [
    Case("gae", name, partial(make_gae, **settings), relative=2e-5, absolute=2e-5)
    for name, settings in {
        **SHAPES,
        "lambda 1": {"trace_decay": 1.0},
        "lambda 0": {"trace_decay": 0.0},
    }.items()
]
RETURNS_CASES += [
    Case("n_step", name, partial(make_n_step, **settings), relative=2e-5, absolute=2e-5)
    for name, settings in {**SHAPES, "1 step": {"n": 1}, "more than there are": {"n": 50}}.items()
]


def vtrace_loss_case(name: str, tolerance: float = 2e-5, **settings: Any) -> Case:
    make = partial(make_vtrace_loss, **settings)
    return Case("vtrace_loss", name, make, relative=tolerance, absolute=tolerance)


VTRACE_LOSS_CASES = [
    vtrace_loss_case("plain"),
    vtrace_loss_case("all valid", masked=False),
    vtrace_loss_case("one transition", shape=(1, 4)),
    vtrace_loss_case("one column", shape=(20, 1)),
    vtrace_loss_case("no column", shape=(3, 0)),
    vtrace_loss_case("one action", actions=1),
    vtrace_loss_case("wide", shape=(5, 130), actions=3),
    vtrace_loss_case("many actions", shape=(7, 9), actions=300),
    vtrace_loss_case("independent parts", splits=(2, 5, 3)),
    vtrace_loss_case("impossible actions", impossible=0.4),
    vtrace_loss_case("impossible parts", impossible=0.4, splits=(3, 4)),
    vtrace_loss_case("clips apart", rho_bar=3.7, c_bar=0.8, pg_rho_bar=2.2, trace_decay=0.9),
    vtrace_loss_case("far off policy", spread=30.0),
    vtrace_loss_case("bfloat16", tolerance=4e-3, low_precision=True),
    vtrace_loss_case("bfloat16 parts", tolerance=4e-3, low_precision=True, splits=(4, 4), impossible=0.2),
]

R2D2_LOSS_CASES = [
    Case("r2d2_loss", name, partial(make_r2d2_loss, **settings), relative=2e-5, absolute=2e-5)
    for name, settings in {
        "plain": {},
        "one transition": {"shape": (2, 3), "burn_in": 0},
        "one sequence": {"shape": (20, 1)},
        "no sequence": {"shape": (5, 0), "burn_in": 1},
        "one action": {"actions": 1},
        "no burn-in": {"burn_in": 0},
        "one trained index": {"burn_in": 13},
        "one step": {"n_step": 1},
        "more steps than there are": {"n_step": 40},
        "wide": {"shape": (12, 130), "actions": 18},
        "full length": {"shape": (121, 16), "burn_in": 40, "ends": 0.02},
        "nothing but ends": {"ends": 1.0},
        "nothing but beginnings": {"begins": 10.0},
        "large values": {"scale": 30.0},
        "plain root": {"rescale_epsilon": 0.0},
    }.items()
]

SAMPLE_CASES = [
    Case(
        "sample_categorical", name, partial(make_sample_categorical, **settings), relative=2e-5, absolute=2e-5
    )
    for name, settings in {
        "plain": {"shape": (32, 6)},
        "one row": {"shape": (5,)},
        "no row": {"shape": (0, 3)},
        "one action": {"shape": (7, 1)},
        "leading axes": {"shape": (3, 1, 40, 4)},
        "many actions": {"shape": (9, 400)},
        "many rows": {"shape": (300, 18)},
        "impossible actions": {"shape": (100, 5), "impossible": 0.7},
        "sharp": {"shape": (100, 5), "spread": 60.0},
    }.items()
]

STEPS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one parameter": {"size": 1},
    "many parameters": {"size": 5000},
    "clipped": {"clip_norm": 0.5},
    "below the clip": {"clip_norm": 40.0},
    "no gradient": {"scale": 0.0, "clip_norm": 1.0},
    "small gradient": {"scale": 1e-12, "clip_norm": 1.0},
    "large gradient": {"scale": 1e12, "clip_norm": 1.0},
}
OPTIMIZER_CASES = [
    Case("rmsprop_step", name, partial(make_rmsprop_step, **settings), relative=2e-5, absolute=2e-6)
    for name, settings in STEPS.items()
]
OPTIMIZER_CASES += [
    Case("adam_step", name, partial(make_adam_step, **settings), relative=2e-5, absolute=2e-6)
    for name, settings in {**STEPS, "first step": {"step": 1}, "late step": {"step": 100_000}}.items()
]

MOVE_CASES = [
    move_case(make_recurrent_gather, "every dtype", EVERY_DTYPE, 12, 9),
    move_case(make_recurrent_gather, "rows with gaps", WITH_GAPS, 12, 9),
    move_case(make_recurrent_gather, "lstm", LSTM, 64, 32),
    move_case(make_recurrent_gather, "one row", SMALL, 1, 1),
    move_case(make_recurrent_gather, "empty batch", SMALL, 3, 0),
    move_case(make_recurrent_gather, "no core", NOTHING, 3, 2),
    move_case(make_recurrent_scatter, "every dtype", EVERY_DTYPE, 12, 9),
    move_case(make_recurrent_scatter, "rows with gaps", WITH_GAPS, 12, 9),
    move_case(make_recurrent_scatter, "all rows", SMALL, 8, 8),
    move_case(make_recurrent_scatter, "empty batch", SMALL, 3, 0),
    move_case(make_recurrent_scatter, "no core", NOTHING, 3, 2),
    move_case(make_unroll_append, "every dtype", EVERY_DTYPE, 12, 9, 4),
    move_case(make_unroll_append, "slots with gaps", WITH_GAPS, 12, 9, 4),
    move_case(make_unroll_append, "frames", FRAMES, 6, 4, 3),
    move_case(make_unroll_append, "empty batch", SMALL, 3, 0, 2),
    move_case(make_unroll_append, "no field", NOTHING, 3, 2, 2),
    move_case(make_unroll_gather, "every dtype", EVERY_DTYPE, 12, 9, 4),
    move_case(make_unroll_gather, "slots with gaps", WITH_GAPS, 12, 9, 4),
    move_case(make_unroll_gather, "frames", FRAMES, 6, 4, 3),
    move_case(make_unroll_gather, "one slot", SMALL, 1, 1, 1),
    move_case(make_unroll_gather, "empty batch", SMALL, 3, 0, 2),
    move_case(make_unroll_gather, "no field", NOTHING, 3, 2, 2),
    move_case(make_slab_gather, "every dtype", EVERY_DTYPE, 12, 9, 4),
    move_case(make_slab_gather, "blocks with gaps", WITH_GAPS, 12, 9, 4),
    move_case(make_slab_gather, "frames", FRAMES, 6, 4, 3),
    move_case(make_slab_gather, "empty batch", SMALL, 3, 0, 2),
    move_case(make_slab_gather, "no field", NOTHING, 3, 2, 2),
]

SUM_TREE_CASES = [
    Case("sum_tree_set", f"{count} of {capacity}", partial(make_sum_tree_set, capacity=capacity, count=count))
    for capacity, count in [(1, 1), (3, 2), (3, 50), (64, 64), (100, 0), (1000, 37), (5000, 256)]
]
SUM_TREE_CASES += [
    Case("sum_tree_set", "plain", partial(make_sum_tree_set, capacity=300, count=32)),
    Case("sum_tree_set", "everything to zero", partial(make_sum_tree_set, capacity=5, count=80, zeros=1.0)),
]
SUM_TREE_CASES += [
    Case("sum_tree_sample", name, partial(make_sum_tree_sample, **settings))
    for name, settings in {
        "plain": {"capacity": 300, "count": 32},
        "one leaf": {"capacity": 1, "count": 3, "zeros": 0.0},
        "three leaves": {"capacity": 3, "count": 64, "zeros": 0.0},
        "no draw": {"capacity": 9, "count": 0},
        "one draw": {"capacity": 1000, "count": 1},
        "mostly zeros": {"capacity": 5000, "count": 256, "zeros": 0.99},
        "lower ends": {"capacity": 70, "count": 16, "uniform": 0.0},
        "upper ends": {"capacity": 70, "count": 16, "uniform": 1.0},
    }.items()
]
SUM_TREE_CASES += [
    Case(
        "sum_tree_sample",
        f"only leaf {position} of 7",
        partial(make_one_positive, capacity=7, count=40, position=position),
    )
    for position in (0, 3, 6)
]

CASES = (
    VTRACE_CASES
    + VTRACE_LOSS_CASES
    + R2D2_LOSS_CASES
    + RETURNS_CASES
    + SAMPLE_CASES
    + OPTIMIZER_CASES
    + MOVE_CASES
    + SUM_TREE_CASES
)

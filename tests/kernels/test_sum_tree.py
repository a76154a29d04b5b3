"""The sum tree keeps exact sums, draws in proportion and never draws a zero."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seedflow.errors import SpecError
from seedflow.kernels import (
    SumTreeSample,
    sum_tree_leaves,
    sum_tree_min,
    sum_tree_new,
    sum_tree_sample,
    sum_tree_set,
    sum_tree_total,
)

from . import reference

CAPACITIES = (3, *(pytest.param(size, marks=pytest.mark.large) for size in (231_071, 262_144)))


def float64(*numbers: float, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def tree_of(leaves: np.ndarray, device: str = "cpu") -> torch.Tensor:
    tree = sum_tree_new(len(leaves), device)
    sum_tree_set(tree, torch.arange(len(leaves), device=device), torch.from_numpy(leaves).to(device))
    return tree


def uniform(count: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(count)).to(device)


def test_a_new_tree_holds_zeros(device: str) -> None:
    tree = sum_tree_new(5, device)
    assert sum_tree_leaves(tree).tolist() == [0.0] * 5
    assert sum_tree_total(tree) == 0.0
    assert sum_tree_min(tree) == 0.0


def test_of_two_values_for_one_leaf_the_later_stays(device: str) -> None:
    tree = sum_tree_new(3, device)
    sum_tree_set(tree, torch.tensor([1, 2, 1], device=device), float64(7.0, 1.0, 0.5, device=device))
    assert sum_tree_leaves(tree).tolist() == [0.0, 0.5, 1.0]
    assert sum_tree_total(tree) == 1.5
    assert sum_tree_min(tree) == 0.5


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_follow_the_values(capacity: int, device: str) -> None:
    values = np.random.default_rng(1).random(capacity) + 0.1
    tree = tree_of(values, device)
    assert sum_tree_total(tree) == pytest.approx(values.sum(), rel=1e-14)
    index, value = (x.cpu().numpy() for x in sum_tree_sample(tree, uniform(1000, 2, device)))
    ends = np.cumsum(values)
    target = (np.arange(1000) + uniform(1000, 2).numpy()) / 1000 * ends[-1]
    slack = 1e-9 * ends[-1]
    assert ((ends[index] - values[index] - slack <= target) & (target <= ends[index] + slack)).all()
    np.testing.assert_array_equal(value, values[index])


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_all_zero_but_one_draws_that_one(capacity: int, place: float, device: str) -> None:
    only = int(place * (capacity - 1))
    tree = sum_tree_new(capacity, device)
    sum_tree_set(tree, torch.tensor([only], device=device), float64(5e-324, device=device))
    index, value = sum_tree_sample(tree, float64(0.0, 0.3, 1.0, device=device))
    assert index.tolist() == [only] * 3
    assert value.tolist() == [5e-324] * 3


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_the_total_itself_draws_the_last_positive_leaf(capacity: int, device: str) -> None:
    values = np.random.default_rng(3).random(capacity) + 0.1
    last = capacity - 1 - capacity // 3
    values[last + 1 :] = 0.0
    index, value = sum_tree_sample(tree_of(values, device), float64(1.0, device=device))
    assert index.tolist() == [last]
    assert value.tolist() == [values[last]]


@settings(max_examples=150)
@given(data=st.data(), capacity=st.integers(1, 70))
def test_any_sequence_of_updates_equals_a_tree_built_from_its_leaves(
    data: st.DataObject, capacity: int
) -> None:
    positive = st.floats(min_value=0.0, max_value=1e300 / capacity, exclude_min=True)
    value = st.one_of(st.just(0.0), st.floats(5e-324, 1e-300), positive)
    tree, leaves = sum_tree_new(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 6))):
        changes = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), value), max_size=90))
        for index, new in changes:
            leaves[index] = new
        index, new = (
            torch.tensor([i for i, _ in changes], dtype=torch.int64),
            float64(*(v for _, v in changes)),
        )
        sum_tree_set(tree, index, new)
        np.testing.assert_array_equal(tree.numpy(), reference.sum_tree(leaves))
    assert sum_tree_min(tree) == min((x for x in leaves if x > 0), default=0.0)
    if leaves.any():
        draws = data.draw(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40))
        index, drawn = sum_tree_sample(tree, float64(*draws))
        assert (drawn > 0).all()
        np.testing.assert_array_equal(drawn.numpy(), leaves[index.numpy()])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_ten_million_updates_leave_a_tree_equal_to_a_rebuilt_one(capacity: int) -> None:
    rng = np.random.default_rng(4)
    tree, leaves = sum_tree_new(capacity), np.zeros(capacity)
    for _ in range(1000):
        index, value = rng.integers(0, capacity, 10_000), rng.random(10_000) ** 8
        leaves[index] = value  # as here, the last of several counts
        sum_tree_set(tree, torch.from_numpy(index), torch.from_numpy(value))
    np.testing.assert_array_equal(tree.numpy(), reference.sum_tree(leaves))


def test_a_random_number_out_of_range_counts_as_its_bound(device: str) -> None:
    tree = tree_of(np.array([1.0, 2.0, 1.0]), device)
    for outside, bound in ((-3.0, 0.0), (1.5, 1.0)):
        draws = [sum_tree_sample(tree, float64(u, device=device)).leaf.tolist() for u in (outside, bound)]
        assert draws[0] == draws[1]


@pytest.mark.parametrize("uniform", [float("nan"), float("inf"), -float("inf")])
def test_nothing_that_may_pass_for_a_random_number_walks_out_of_the_tree(uniform: float, device: str) -> None:
    tree = tree_of(np.array([0.0, 2.0, 0.0, 1.0, 0.0]), device)
    index, value = sum_tree_sample(tree, float64(uniform, device=device))
    assert index.item() in (1, 3)
    assert value.item() > 0


def test_a_total_beyond_float64_still_draws_no_zero(device: str) -> None:
    tree = tree_of(np.array([0.0, 1.7e308, 0.0, 0.0, 1.7e308, 0.0, 0.0]), device)
    assert sum_tree_total(tree) == float("inf")
    assert (sum_tree_sample(tree, uniform(20, 5, device)).value == 1.7e308).all()


def test_errors_name_the_argument_and_nothing_is_written() -> None:
    tree = tree_of(np.array([1.0, 2.0, 3.0]))
    before = tree.clone()

    def error(index: list[int], *value: float) -> str:
        with pytest.raises(SpecError) as caught:
            sum_tree_set(tree, torch.tensor(index, dtype=torch.int64), float64(*value))
        assert torch.equal(tree, before)
        return str(caught.value)

    assert error([0, 3], 1.0, 1.0).startswith("index[1] is 3: expected 0 <= index[1] < 3")
    assert error([-1], 1.0).startswith("index[0] is -1")
    assert error([0, 1], 1.0, -0.5).startswith("value[1] is -0.5: expected a finite number")
    assert error([0], float("nan")).startswith("value[0] is nan")
    assert error([0], float("inf")).startswith("value[0] is inf")
    assert "expected shape [1], [K] as index" in error([0], 1.0, 2.0)
    with pytest.raises(SpecError, match="uniform is float32"):
        sum_tree_sample(tree, torch.zeros(3))
    with pytest.raises(SpecError, match=r"out\.leaf is float64"):
        sum_tree_sample(tree, float64(0.5), out=SumTreeSample(float64(0.0), float64(0.0)))
    with pytest.raises(SpecError, match="tree has 6 numbers: expected a power of two"):
        sum_tree_total(torch.zeros(6, dtype=torch.float64))
    with pytest.raises(SpecError, match="only leaves of value 0"):
        sum_tree_sample(sum_tree_new(4), float64(0.5))
    with pytest.raises(SpecError, match="capacity is 0"):
        sum_tree_new(0)

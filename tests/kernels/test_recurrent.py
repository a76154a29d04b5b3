"""Core states survive the way through their tables; what does not fit is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seedflow.errors import SpecError
from seedflow.kernels import recurrent_gather, recurrent_scatter

from .cases import DTYPES, array


@settings(deadline=None, max_examples=60)
@given(data=st.data(), size=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_what_is_scattered_is_gathered(data: st.DataObject, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    item_shapes = st.lists(
        st.tuples(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=4,
    )
    kinds = data.draw(item_shapes)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), unique=True)), dtype=torch.int64)
    first = torch.from_numpy(rng.random(len(rows)) < 0.3)
    tables = [torch.from_numpy(array(rng, (size, *item), dtype)) for item, dtype in kinds]
    before = [table.clone() for table in tables]
    values = [torch.from_numpy(array(rng, (len(rows), *item), dtype)) for item, dtype in kinds]

    recurrent_scatter(tables, rows, values)
    for state, value in zip(recurrent_gather(tables, rows, first), values, strict=True):
        assert torch.equal(state[~first], value[~first])
        assert not state[first].any()

    untouched = torch.ones(size, dtype=torch.bool)
    untouched[rows] = False
    for table, old in zip(tables, before, strict=True):
        assert torch.equal(table[untouched], old[untouched])


def test_gathering_leaves_the_tables_alone(device: str) -> None:
    table = torch.ones(3, 2, device=device)
    rows, first = torch.tensor([0, 2], device=device), torch.tensor([True, False], device=device)
    assert recurrent_gather([table], rows, first)[0].tolist() == [[0, 0], [1, 1]]
    assert (table == 1).all()


def test_a_row_may_be_gathered_twice(device: str) -> None:
    table = torch.arange(6, device=device).reshape(3, 2)
    rows, first = torch.tensor([1, 1], device=device), torch.tensor([False, True], device=device)
    assert recurrent_gather([table], rows, first)[0].tolist() == [[2, 3], [0, 0]]


def test_of_two_states_for_one_row_the_later_stays() -> None:
    table = torch.zeros(3)
    recurrent_scatter([table], torch.tensor([1, 1, 0]), [torch.tensor([5.0, 6.0, 7.0])])
    assert table.tolist() == [7, 6, 0]


def test_tables_may_require_gradients() -> None:
    table = torch.ones(2, 2, requires_grad=True)
    (state,) = recurrent_gather([table], torch.tensor([1]), torch.tensor([False]))
    assert not state.requires_grad


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_a_row_out_of_range_writes_nothing(bad: int) -> None:
    table, out = torch.zeros(4, 2), torch.full((2, 2), 7.0)
    rows, message = torch.tensor([1, bad]), rf"rows\[1\] is {bad}: expected 0 <= rows\[1\] < 4"
    with pytest.raises(SpecError, match=message):
        recurrent_scatter([table], rows, [torch.ones(2, 2)])
    with pytest.raises(SpecError, match=message):
        recurrent_gather([table], rows, torch.zeros(2, dtype=torch.bool), [out])
    assert not table.any()
    assert (out == 7).all()


def test_errors_name_the_argument() -> None:
    tables = [torch.zeros(4, 2), torch.zeros(4, dtype=torch.uint8)]
    rows, first = torch.tensor([0, 3]), torch.tensor([False, True])
    values = [torch.zeros(2, 2), torch.zeros(2, dtype=torch.uint8)]

    with pytest.raises(SpecError, match=r"values has 1 tensors: expected 2, one for each of tables"):
        recurrent_scatter(tables, rows, values[:1])
    with pytest.raises(SpecError, match=r"values\[1\] is float32 \[2\] on cpu: expected dtype uint8"):
        recurrent_scatter(tables, rows, [values[0], torch.zeros(2)])
    with pytest.raises(SpecError, match=r"values\[0\] is .*expected shape \[2, 2\]"):
        recurrent_scatter(tables, rows, [torch.zeros(2, 3), values[1]])
    with pytest.raises(SpecError, match=r"values\[0\] .* has strides \[1, 2\]"):
        recurrent_scatter(tables, rows, [torch.zeros(2, 2).T, values[1]])
    with pytest.raises(SpecError, match=r"tables\[1\] is .*expected its first 1 axes to be \[4\]"):
        recurrent_gather([tables[0], torch.zeros(5)], rows, first)
    with pytest.raises(SpecError, match=r"tables\[0\] has rank 0"):
        recurrent_gather([torch.tensor(1.0)], rows, first)
    with pytest.raises(SpecError, match=r"tables\[0\] is complex64"):
        recurrent_gather([torch.zeros(4, dtype=torch.complex64)], rows, first)
    with pytest.raises(SpecError, match="rows is int32"):
        recurrent_gather(tables, rows.int(), first)
    with pytest.raises(SpecError, match="rows has rank 2"):
        recurrent_gather(tables, rows[None], first)
    with pytest.raises(SpecError, match=r"rows .* has strides"):
        recurrent_gather(tables, torch.zeros(4, dtype=torch.int64)[::2], first)
    with pytest.raises(SpecError, match="first is uint8"):
        recurrent_gather(tables, rows, first.byte())
    with pytest.raises(SpecError, match=r"first is bool .*expected shape"):
        recurrent_gather(tables, rows, first[:1])
    with pytest.raises(SpecError, match=r"out\[0\] is"):
        recurrent_gather(tables, rows, first, [torch.zeros(3, 2), values[1]])
    with pytest.raises(SpecError, match=r"out\[0\] is .* on meta: expected it on cpu"):
        recurrent_gather(tables, rows, first, [torch.zeros(2, 2, device="meta"), values[1]])

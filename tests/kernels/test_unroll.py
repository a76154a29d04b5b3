"""Unrolls written index by index come back whole and time-major; what does not fit is refused by name."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seedflow.errors import SpecError
from seedflow.kernels import unroll_append, unroll_gather

from .cases import DTYPES, array


@settings(deadline=None, max_examples=40)
@given(data=st.data(), size=st.integers(1, 6), steps=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_unrolls_come_back_as_they_were_appended(
    data: st.DataObject, size: int, steps: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    item_shapes = st.lists(
        st.tuples(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), st.sampled_from(DTYPES)),
        min_size=1,
        max_size=4,
    )
    kinds = data.draw(item_shapes)
    slots = torch.tensor(data.draw(st.lists(st.integers(0, size - 1), unique=True)), dtype=torch.int64)
    fields = [torch.from_numpy(array(rng, (size, steps + 1, *item), dtype)) for item, dtype in kinds]
    before = [field.clone() for field in fields]
    unrolls = [torch.from_numpy(array(rng, (steps + 1, len(slots), *item), dtype)) for item, dtype in kinds]

    for t in range(steps + 1):
        unroll_append(fields, slots, torch.full_like(slots, t), [unroll[t] for unroll in unrolls])
    for gathered, unroll in zip(unroll_gather(fields, slots), unrolls, strict=True):
        assert torch.equal(gathered, unroll)

    untouched = torch.ones(size, dtype=torch.bool)
    untouched[slots] = False
    for field, old in zip(fields, before, strict=True):
        assert torch.equal(field[untouched], old[untouched])


def test_entries_go_each_to_their_own_time(device: str) -> None:
    field = torch.zeros(3, 4, dtype=torch.int64, device=device)
    slots, times = torch.tensor([2, 0], device=device), torch.tensor([3, 1], device=device)
    unroll_append([field], slots, times, [torch.tensor([8, 9], device=device)])
    assert field.tolist() == [[0, 9, 0, 0], [0, 0, 0, 0], [0, 0, 0, 8]]


def test_slots_may_live_in_shared_memory() -> None:
    """Fields laid out one after the other in one mapping, at an offset that is not aligned."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        frames = np.frombuffer(memory, np.uint8, 2 * 3 * 5, offset=1).reshape(2, 3, 5)
        flags = np.frombuffer(memory, np.bool_, 2 * 3, offset=101).reshape(2, 3)
        fields = [torch.from_numpy(frames), torch.from_numpy(flags)]
        values = [torch.full((1, 5), 6, dtype=torch.uint8), torch.tensor([True])]
        unroll_append(fields, torch.tensor([1]), torch.tensor([2]), values)
        assert frames.sum() == memory[1:31].count(6) * 6 == 30
        assert np.argwhere(flags).tolist() == [[1, 2]]
        batch = unroll_gather(fields, torch.tensor([1]))
        assert batch[0][2, 0].tolist() == [6] * 5
        del frames, flags, fields


@pytest.mark.parametrize(
    ("slots", "times", "message"),
    [
        ([0, 3], [0, 0], r"slots\[1\] is 3: expected 0 <= slots\[1\] < 3"),
        ([-1, 0], [0, 0], r"slots\[0\] is -1"),
        ([0, 1], [0, 5], r"times\[1\] is 5: expected 0 <= times\[1\] < 5"),
        ([0, 1], [-2, 0], r"times\[0\] is -2"),
    ],
)
def test_an_index_out_of_range_writes_nothing(slots: list[int], times: list[int], message: str) -> None:
    field = torch.zeros(3, 5)
    with pytest.raises(SpecError, match=message):
        unroll_append([field], torch.tensor(slots), torch.tensor(times), [torch.ones(2)])
    assert not field.any()


def test_a_slot_out_of_range_gathers_nothing() -> None:
    out = torch.full((5, 2), 7.0)
    with pytest.raises(SpecError, match=r"slots\[1\] is 3"):
        unroll_gather([torch.zeros(3, 5)], torch.tensor([0, 3]), [out])
    assert (out == 7).all()


def test_errors_name_the_argument() -> None:
    fields = [torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.bool)]
    slots, times = torch.tensor([0, 2]), torch.tensor([1, 1])
    values = [torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)]

    with pytest.raises(SpecError, match="values has 1 tensors: expected 2, one for each of fields"):
        unroll_append(fields, slots, times, values[:1])
    with pytest.raises(SpecError, match=r"values\[1\] is uint8 \[2\] on cpu: expected dtype bool"):
        unroll_append(fields, slots, times, [values[0], values[1].byte()])
    with pytest.raises(SpecError, match=r"times is int64 .*expected shape"):
        unroll_append(fields, slots, times[:1], values)
    with pytest.raises(SpecError, match="times is int32"):
        unroll_append(fields, slots, times.int(), values)
    with pytest.raises(SpecError, match="slots is float32"):
        unroll_append(fields, slots.float(), times, values)
    with pytest.raises(SpecError, match=r"fields\[1\] has rank 1"):
        unroll_gather([fields[0], torch.zeros(3)], slots)
    with pytest.raises(SpecError, match=r"fields\[1\] is .*expected its first 2 axes to be \[3, 5\]"):
        unroll_gather([fields[0], torch.zeros(3, 4)], slots)
    with pytest.raises(SpecError, match=r"fields\[0\] .* has strides \[10, 1, 5\]"):
        unroll_gather([torch.zeros(3, 2, 5).transpose(1, 2)], slots)
    with pytest.raises(SpecError, match=r"out\[0\] is .*expected shape \[5, 2, 2\]"):
        unroll_gather(fields, slots, [torch.zeros(2, 5, 2), torch.zeros(5, 2, dtype=torch.bool)])
    with pytest.raises(SpecError, match=r"out\[0\] has rank 2"):
        unroll_gather(fields, slots, [torch.zeros(5, 2), torch.zeros(5, 2, dtype=torch.bool)])

"""Copying items by index vectors, many arrays in one call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedflow.errors import SpecError
from seedflow.kernels.items import ItemCopier


def test_items_go_from_rows_to_slots() -> None:
    slots, rows = torch.zeros(2, 3, 2), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    copier = ItemCopier([slots], [rows], axes=(2, 1))
    copier((np.array([1, 0]), np.array([2, 0])), (np.array([0, 1]),))
    assert slots[1, 2].tolist() == [5.0, 6.0]
    assert slots[0, 0].tolist() == [7.0, 8.0]
    assert slots.sum() == 26.0


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 12),
    axes=st.tuples(st.sampled_from([1, 2]), st.sampled_from([1, 2])),
)
def test_any_items_land_where_plain_indexing_puts_them(seed: int, count: int, axes: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    to_shape, of_shape = (4, 5)[: axes[0]], (6, 3)[: axes[1]]
    kinds = [((), np.bool_), ((3,), np.float32), ((2, 2), np.uint8), ((1,), np.int64)]
    sources = [rng.integers(0, 2, (*of_shape, *item)).astype(dtype) for item, dtype in kinds]
    targets = [np.zeros((*to_shape, *item), dtype) for item, dtype in kinds]
    expected = [target.copy() for target in targets]
    places = rng.permutation(int(np.prod(to_shape)))[:count]  # each target once
    to = np.unravel_index(places, to_shape)
    of = np.unravel_index(rng.integers(0, np.prod(of_shape), len(places)), of_shape)
    copier = ItemCopier(
        [torch.from_numpy(t) for t in targets], [torch.from_numpy(s) for s in sources], axes=axes
    )
    copier(to, of)
    for target, source, wanted in zip(targets, sources, expected, strict=True):
        wanted[to] = source[of]
        np.testing.assert_array_equal(target, wanted)


def test_rows_with_gaps_between_them_are_copied_too() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    target = torch.zeros(2, 2)
    ItemCopier([target], [wide[:, 1:3]], axes=(1, 1))((np.array([0, 1]),), (np.array([2, 0]),))
    assert target.tolist() == [[9.0, 10.0], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("to", "of", "words"),
    [
        (([2], [0]), ([0],), "first target index holds 2 to 2: expected 0 to 1"),
        (([0], [3]), ([0],), "second target index"),
        (([0], [0]), ([-1],), "first source index"),
    ],
)
def test_an_index_out_of_range_is_refused_and_nothing_is_copied(
    to: tuple[list[int], ...], of: tuple[list[int], ...], words: str
) -> None:
    target, source = torch.zeros(2, 3), torch.ones(4)
    copier = ItemCopier([target], [source], axes=(2, 1))
    with pytest.raises(SpecError, match=words):
        copier(tuple(map(np.array, to)), tuple(map(np.array, of)))
    assert target.sum() == 0


def test_pairs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="source 0 has items"):
        ItemCopier([torch.zeros(2, 3)], [torch.zeros(2, 4)], axes=(1, 1))
    with pytest.raises(SpecError, match="1 sources for 2 targets"):
        ItemCopier([torch.zeros(2), torch.zeros(2)], [torch.zeros(2)], axes=(1, 1))
    with pytest.raises(SpecError, match="expected items that are dense"):
        ItemCopier([torch.zeros(2, 3, 4).transpose(1, 2)], [torch.zeros(2, 4, 3)], axes=(1, 1))


def test_sources_can_be_exchanged() -> None:
    target = torch.zeros(1)
    copier = ItemCopier([target], [torch.ones(1)], axes=(1, 1))
    copier.aim([torch.full((1,), 5.0)])
    copier((np.array([0]),), (np.array([0]),))
    assert target.item() == 5.0

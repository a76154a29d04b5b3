"""The exploration ladder."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedflow.algos.r2d2.exploration import exploration_ladder, van_der_corput_ranks


def test_ten_rungs() -> None:
    ladder = exploration_ladder(10, base=0.4, power=7.0)
    expected = [0.4, 0.196133, 0.096171, 0.047156, 0.023122, 0.011337, 0.005559, 0.002726, 0.001337, 0.000655]
    assert sorted(ladder, reverse=True) == pytest.approx(expected, abs=1e-6)


def test_a_single_environment_explores_most() -> None:
    assert exploration_ladder(1, base=0.4, power=7.0) == [0.4]


@given(st.integers(1, 700), st.data())
def test_any_first_few_environments_cover_the_ladder(envs: int, data: st.DataObject) -> None:
    ranks = van_der_corput_ranks(envs)
    assert sorted(ranks) == list(range(envs))
    few = data.draw(st.integers(1, envs))
    places = [-1, *sorted(ranks[:few]), envs]
    widest = max(after - before for before, after in itertools.pairwise(places))
    assert widest <= 2 * (envs / few) + 2, "no wide gap in it"

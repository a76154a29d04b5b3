"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in child processes
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest

from tests.leaks import left_behind, take_stock

# Speed is measured in benchmarks, not here: the machine may be slow or busy.
hypothesis.settings.register_profile("seedflow", deadline=None)
hypothesis.settings.load_profile("seedflow")


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves processes, threads or descriptors behind, unless marked ``leaks(reason)``."""
    before = take_stock()
    yield
    if request.node.get_closest_marker("leaks") is None:
        found = left_behind(before)
        if found:
            pytest.fail("the test leaves behind:\n  " + "\n  ".join(found), pytrace=False)

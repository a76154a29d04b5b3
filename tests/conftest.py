"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, here and in child processes
os.environ.setdefault("MPLBACKEND", "Agg")

import hypothesis
import pytest

from tests.leaks import left_behind, take_stock

# Speed is measured in benchmarks, not here: the machine may be slow or busy.
hypothesis.settings.register_profile("seedflow", deadline=None)
hypothesis.settings.load_profile("seedflow")

# What a background job ignores, its children ignore, too; the tests and what they start shall hear it.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves processes, threads or descriptors behind, unless marked ``leaks(reason)``."""
    before = take_stock()
    yield
    if request.node.get_closest_marker("leaks") is None:
        found = left_behind(before)
        if found:
            pytest.fail("the test leaves behind:\n  " + "\n  ".join(found), pytrace=False)


REASONS_TO_SKIP = ("needs a GPU", "needs root and loop devices")
"""In continuous integration, which installs all that tests need, any other skip is a failure."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not os.environ.get("CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if reason.removeprefix("Skipped: ") not in REASONS_TO_SKIP:
        report.outcome = "failed"
        report.longrepr = f"skipped in continuous integration: {reason}"

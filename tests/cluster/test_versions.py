"""Versions of the driver and the workers, side by side."""

from __future__ import annotations

import pytest

from seedflow.cluster.versions import PACKAGES, check_versions, table
from seedflow.errors import PlacementError

HERE = {"python": "3.11", "seedflow": "0.1.0", **dict.fromkeys(PACKAGES, "1.0")}
LEARNER, ACTOR = "tcp://10.0.0.1:4000", "tcp://10.0.0.2:4000"


def test_equal_versions_are_not_spoken_of() -> None:
    assert check_versions(HERE, {LEARNER: HERE, ACTOR: HERE}, LEARNER) is None


def test_another_python_is_refused_with_a_table_in_which_equal_workers_share_a_line() -> None:
    workers = {LEARNER: HERE, **{f"tcp://10.0.0.{n}:4000": {**HERE, "python": "3.12"} for n in (3, 4)}}
    with pytest.raises(PlacementError) as error:
        check_versions(HERE, workers, LEARNER)
    assert str(error.value) == (
        "Python's minor version is not the same in this process and on every worker that the run could use; "
        "install the driver's there, or start the workers in its environment:\n"
        "                                  python\n"
        "  here                            3.11\n"
        "  tcp://10.0.0.1:4000             3.11\n"
        "  tcp://10.0.0.3:4000 and 1 more  3.12"
    )


def test_another_seedflow_is_refused() -> None:
    with pytest.raises(PlacementError, match=r"(?s)seedflow is not the same .*tcp://10.0.0.2:4000  0.0.9"):
        check_versions(HERE, {LEARNER: HERE, ACTOR: {**HERE, "seedflow": "0.0.9"}}, LEARNER)


def test_a_package_that_actors_need_is_missing() -> None:
    message = r"(?s)^gymnasium is missing on a worker .*install seedflow there.*tcp://10.0.0.2:4000  -$"
    with pytest.raises(PlacementError, match=message):
        check_versions(HERE, {LEARNER: HERE, ACTOR: {**HERE, "gymnasium": None}}, LEARNER)


def test_only_the_learner_needs_torch() -> None:
    without = {**HERE, "torch": None}
    assert check_versions(HERE, {LEARNER: HERE, ACTOR: without}, LEARNER) is None
    with pytest.raises(PlacementError, match="torch is missing"):
        check_versions(HERE, {LEARNER: without, ACTOR: HERE}, LEARNER)


def test_other_packages_may_differ_and_are_shown() -> None:
    odd = check_versions(HERE, {LEARNER: HERE, ACTOR: {**HERE, "numpy": "2.0", "dask": "2.0"}}, LEARNER)
    assert odd == (
        "versions differ between this process and workers:\n"
        "                       dask  numpy\n"
        "  here                 1.0   1.0\n"
        "  tcp://10.0.0.1:4000  1.0   1.0\n"
        "  tcp://10.0.0.2:4000  2.0   2.0"
    )


def test_a_version_that_is_unknown_is_a_dash() -> None:
    assert table({"numpy": None}, {}, ("numpy",)).splitlines() == ["        numpy", "  here  -"]

"""The transport's benchmark moves real messages, and its figures add up."""

from __future__ import annotations

import pytest

from seedflow.bench.transport import WORKLOADS, measure, measure_memcpy


@pytest.mark.parametrize("path", ["slab", "grpc"])
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_what_a_step_costs_is_the_sum_of_its_sides(workload, path) -> None:  # type: ignore[no-untyped-def]
    figures = measure(workload, path, actors=1, seconds=0.5)
    sides = [figures[f"{side}_us_per_step"] for side in ("actor", "gateway", "learner")]
    assert figures["us_per_step"] == pytest.approx(sum(sides))
    assert (figures["gateway_us_per_step"] > 0) == (path == "grpc")
    assert figures["bytes_per_second"] == pytest.approx(
        figures["steps_per_second"] * workload.observation.nbytes
    )
    # One actor, two groups: a batch holds one of them, or both.
    assert workload.envs <= figures["envs_per_batch"] <= 2 * workload.envs


def test_memcpy_copies_the_bytes_of_a_group() -> None:
    figures = measure_memcpy(WORKLOADS[1], 0.1)
    assert figures["bytes_per_second"] == pytest.approx(figures["steps_per_second"] * 84 * 84)

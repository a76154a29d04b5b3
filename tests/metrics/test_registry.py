import math
import threading

import numpy as np
import pytest

from seedflow.metrics import Metrics, Rate
from seedflow.metrics.registry import WINDOW


def test_counters_total_up_and_survive_a_snapshot() -> None:
    metrics = Metrics()
    metrics.add("steps/agent", 64)
    metrics.add("steps/agent", 32)
    metrics.add("actor/restarts")
    assert metrics.snapshot() == {"steps/agent": 96, "actor/restarts": 1}
    metrics.add("steps/agent", 4)
    assert metrics.snapshot()["steps/agent"] == 100


def test_a_gauge_keeps_its_newest_value() -> None:
    metrics = Metrics()
    metrics.set("slots/free", 3)
    metrics.set("slots/free", 7)
    assert metrics.snapshot() == {"slots/free": 7}
    assert metrics.snapshot() == {"slots/free": 7}


def test_a_distribution_reports_its_mean_once_and_is_absent_when_nothing_was_seen() -> None:
    metrics = Metrics()
    metrics.observe("inference/batch_size", 64)
    metrics.observe("inference/batch_size", np.array([32, 48], np.int32))
    assert metrics.snapshot() == {"inference/batch_size": 48.0}
    assert metrics.snapshot() == {}


def test_an_empty_array_is_no_observation() -> None:
    metrics = Metrics()
    metrics.observe("episode/return", np.empty(0))
    assert metrics.snapshot() == {}


def test_durations_report_percentiles_and_other_distributions_do_not() -> None:
    metrics = Metrics()
    metrics.observe("inference/latency_ms", np.arange(101.0))
    metrics.observe("episode/return", np.arange(101.0))
    assert metrics.snapshot() == {
        "inference/latency_ms": 50.0,
        "inference/latency_ms_p50": 50.0,
        "inference/latency_ms_p99": 99.0,
        "episode/return": 50.0,
    }


def test_policy_lag_reports_its_spread_and_its_bound() -> None:
    metrics = Metrics()
    metrics.observe("lag/policy_versions", np.array([0] * 98 + [1, 9], np.int64))
    values = metrics.snapshot()
    assert values["lag/policy_versions"] == pytest.approx(0.1)
    assert values["lag/policy_versions_p50"] == 0
    assert values["lag/policy_versions_max"] == 9


@pytest.mark.parametrize("chunk", [1, 7, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 5])
def test_percentiles_are_those_of_the_most_recent_window_and_the_mean_that_of_all(chunk: int) -> None:
    metrics = Metrics()
    seen = np.arange(2 * WINDOW + 5, dtype=np.float64)
    for begin in range(0, seen.size, chunk):
        values = seen[begin : begin + chunk]
        metrics.observe("inference/latency_ms", float(values[0]) if chunk == 1 else values)
    snapshot = metrics.snapshot()
    assert snapshot["inference/latency_ms"] == pytest.approx(seen.mean())
    assert snapshot["inference/latency_ms_p50"] == pytest.approx(np.percentile(seen[-WINDOW:], 50))
    assert snapshot["inference/latency_ms_p99"] == pytest.approx(np.percentile(seen[-WINDOW:], 99))


def test_whole_numbers_stay_whole_and_all_are_python_numbers() -> None:
    metrics = Metrics()
    metrics.add("steps/agent", np.int64(3))
    metrics.set("train/learning_rate", np.float32(0.5))
    metrics.observe("loss/value", np.float32(0.25))
    snapshot = metrics.snapshot()
    assert {name: type(value) for name, value in snapshot.items()} == {
        "steps/agent": int,
        "train/learning_rate": float,
        "loss/value": float,
    }


def test_a_loss_that_is_not_finite_is_reported_as_it_is() -> None:
    metrics = Metrics()
    metrics.observe("loss/total", math.nan)
    assert math.isnan(metrics.snapshot()["loss/total"])


def test_one_name_cannot_be_of_two_kinds() -> None:
    metrics = Metrics()
    metrics.observe("steps/agent", 1)
    metrics.snapshot()
    with pytest.raises(ValueError, match=r"'steps/agent' is a distribution already.*counter"):
        metrics.add("steps/agent")
    with pytest.raises(ValueError, match=r"'steps/agent' is a distribution already.*gauge"):
        metrics.set("steps/agent", 1)


def test_nothing_is_lost_between_two_updating_threads_and_a_reading_one() -> None:
    metrics, rounds = Metrics(), 2000
    begin = threading.Barrier(3)

    def update() -> None:
        begin.wait(10)
        for _ in range(rounds):
            metrics.add("steps/agent", 2)
            metrics.observe("inference/batch_size", 1.0)
            metrics.observe("lag/policy_versions", np.ones(3))

    threads = [threading.Thread(target=update) for _ in range(2)]
    for thread in threads:
        thread.start()
    begin.wait(10)
    while any(thread.is_alive() for thread in threads):
        snapshot = metrics.snapshot()
        assert snapshot.get("inference/batch_size", 1.0) == 1.0
        assert snapshot.get("lag/policy_versions_p99", 1.0) == 1.0
    for thread in threads:
        thread.join(10)
    assert metrics.snapshot()["steps/agent"] == 2 * 2 * rounds


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_the_slope_between_two_snapshots() -> None:
    clock = FakeClock()
    rate = Rate("steps/agent", "rate/agent_steps_per_second", clock)
    assert rate.of({"steps/agent": 5_000}) == {}
    clock.now += 4.0
    assert rate.of({"steps/agent": 6_000}) == {"rate/agent_steps_per_second": 250.0}
    clock.now += 1.0
    assert rate.of({"steps/agent": 6_000}) == {"rate/agent_steps_per_second": 0.0}


def test_a_rate_is_never_negative_infinite_or_made_up() -> None:
    clock = FakeClock()
    rate = Rate("steps/agent", "rate/agent_steps_per_second", clock)
    assert rate.of({}) == {}
    assert rate.of({"steps/agent": 10}) == {}
    assert rate.of({"steps/agent": 20}) == {}, "no time has passed"
    clock.now += 1.0
    assert rate.of({"steps/agent": 5}) == {}, "the counter went back to a checkpoint"
    clock.now += 1.0
    assert rate.of({"steps/agent": 8}) == {"rate/agent_steps_per_second": 3.0}

"""The page for Prometheus."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from seedflow.metrics.names import METRICS, prometheus_name
from seedflow.metrics.prometheus import PrometheusSink


def page(sink: PrometheusSink) -> list[str]:
    with urllib.request.urlopen(sink.url, timeout=30) as answer:
        return answer.read().decode().splitlines()


def test_the_newest_values_are_served_with_kind_and_meaning() -> None:
    with PrometheusSink("first", "127.0.0.1", 0) as sink:
        assert page(sink) == []
        sink.write(64, {"steps/agent": 64.0, "episode/return": 21.5})
        sink.write(128, {"steps/agent": 128.0, "episode/return": 22.5, "loss/policy": -0.5})
        lines = page(sink)
    assert 'seedflow_steps_agent_total{run="first"} 128.0' in lines
    assert "# TYPE seedflow_steps_agent_total counter" in lines
    assert 'seedflow_episode_return{run="first"} 22.5' in lines
    assert "# TYPE seedflow_episode_return gauge" in lines
    assert 'seedflow_loss_policy{run="first"} -0.5' in lines
    assert len([line for line in lines if line.startswith("# HELP") and len(line.split()) > 3]) == 3


def test_every_documented_name_is_served() -> None:
    values = {metric.name.replace("*", "total"): 1.0 for metric in METRICS}
    with PrometheusSink("first", "127.0.0.1", 0) as sink:
        sink.write(64, values)
        served = {line.partition("{")[0] for line in page(sink) if not line.startswith("#")}
    assert served == {prometheus_name(name) for name in values}
    assert "seedflow_replay_snapshot_lock_ms" in served


def test_a_port_that_is_taken_is_an_error_and_closing_may_come_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        PrometheusSink("first", "127.0.0.1", taken.getsockname()[1])
    sink = PrometheusSink("first", "127.0.0.1", 0)
    sink.close()
    sink.close()

import pytest

from seedflow.metrics import Metrics
from seedflow.metrics.console import FIELDS
from seedflow.metrics.names import METRICS, describe, markdown_table


def test_every_name_is_listed_once_with_unit_and_meaning() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert "/" in metric.name
        assert metric.unit
        assert metric.meaning.endswith(".")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("steps/agent", "steps/agent"),
        ("inference/latency_ms_p50", "inference/latency_ms"),
        ("lag/policy_versions_max", "lag/policy_versions"),
        ("loss/entropy", "loss/*"),
        ("eval/return", "eval/return"),
        ("eval/length", "eval/length"),
        ("steps/agent_p50", None),
        ("unheard/of", None),
    ],
)
def test_a_name_is_described_by_its_row(name: str, row: str | None) -> None:
    found = describe(name)
    assert (found and found.name) == row


def test_all_that_a_snapshot_derives_is_described() -> None:
    metrics = Metrics()
    for metric in METRICS:
        if metric.kind == "distribution":
            metrics.observe(metric.name.replace("*", "some"), 1.0)
    for name in metrics.snapshot():
        assert describe(name) is not None, name


def test_the_console_shows_documented_metrics_only() -> None:
    for _, name in FIELDS:
        assert describe(name) is not None, name


def test_the_markdown_table_has_a_row_for_each() -> None:
    lines = markdown_table().splitlines()
    assert len(lines) == 2 + len(METRICS)
    assert any(line.startswith("| `inference/latency_ms`, `_p50`, `_p99` | ms |") for line in lines)

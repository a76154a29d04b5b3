"""The benchmarks of whole runs: real runs, a short while each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from seedflow.bench import sweep
from seedflow.bench.measure import alternate
from seedflow.bench.sweep import SIZES, Size, bench_sweep
from seedflow.bench.train import ROLES, bench_train
from seedflow.cli import cli


def test_variants_take_turns_and_give_medians() -> None:
    turns = []

    def variant(name: str, values: list[float]):  # type: ignore[no-untyped-def]
        def run() -> dict[str, float]:
            turns.append(name)
            return {"seconds": values.pop()}

        return run

    medians = alternate({"a": variant("a", [1.0, 9.0, 2.0]), "b": variant("b", [5.0, 4.0, 3.0])}, rounds=3)
    assert turns == ["a", "b"] * 3
    assert medians == {"a": {"seconds": 2.0}, "b": {"seconds": 4.0}}


def test_the_sweep_goes_from_one_environment_to_256_in_32_actors() -> None:
    assert [size.total for size in SIZES] == [2**n for n in range(9)]
    assert SIZES[-1].actors == 32


def test_an_unknown_workload_is_named() -> None:
    result = CliRunner().invoke(cli, ["bench", "train", "cartpole"])
    assert result.exit_code == 2
    assert "No workload 'cartpole'" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_set_against_its_bound() -> None:
    report = bench_train(rounds=1, seconds=3.0, names=("cartpole-64",))
    figures = report["cartpole-64"]
    parts = [figures[f"bound {part} us_per_step"] for part in ("env", "inference", "training")]
    assert all(part > 0 for part in parts)
    assert figures["bound us_per_step"] == pytest.approx(sum(parts))
    assert figures["us_per_step"] == pytest.approx(
        sum(figures[f"{role} us_per_step"] for role in set(ROLES.values()))
    )
    assert figures["steps_per_second"] > 0
    assert figures["gateway us_per_step"] == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_and_more_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (Size(1, 1, 1), Size(3, 2, 2))
    report = bench_sweep(rounds=1, seconds=2.0, sizes=sizes)
    assert max(figures["share_of_best"] for figures in report["sizes"].values()) == 1.0
    assert report["sizes"]["12 envs"]["envs_per_batch"] <= 12
    assert sweep.markdown(report).count("\n") == 3
    monkeypatch.setattr(sweep, "bench_sweep", lambda rounds: report)
    drawn = tmp_path / "sweep.svg"
    result = CliRunner().invoke(cli, ["bench", "sweep", "--json", "-o", str(drawn)])
    assert json.loads(result.stdout)["sizes"].keys() == {"1 envs", "12 envs"}
    assert drawn.read_text().startswith("<?xml")

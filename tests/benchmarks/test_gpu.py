"""The GPU benchmark's own logic, which needs no GPU: what is counted, measured, skipped and written."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_kernels, gpu_workloads
from benchmarks.gpu import Context, SkippedPart, outcomes, run_parts, table_of
from benchmarks.gpu_workloads import WORKLOADS, Maker, Workload
from seedflow.kernels import registry

ROOT = Path(__file__).resolve().parents[2]


class FakeTimer:
    """Takes 8 microseconds for a call on the GPU and 20 from Python, and makes each once."""

    def gpu(self, call: Callable[[], Any], calls: int = 1) -> float:
        call()
        return 8.0

    def eager(self, call: Callable[[], Any], calls: int = 1) -> float:
        call()
        return 20.0

    def host(self, call: Callable[[], Any], calls: int = 1) -> float:
        call()
        return 5.0


def context(seconds: float = 100.0) -> Context:
    return Context(FakeTimer(), time.monotonic() + seconds)


SMALL = (
    gpu_workloads.vtrace(4, 3),
    gpu_workloads.vtrace_loss(4, 3, 5),
    gpu_workloads.vtrace_loss(4, 3, 5, torch.bfloat16),
    gpu_workloads.r2d2_loss(9, 3, 4, 2),
    gpu_workloads.gae(4, 3),
    gpu_workloads.n_step(4, 3, 2),
    gpu_workloads.recurrent("recurrent_gather", 6, 3, 4),
    gpu_workloads.recurrent("recurrent_scatter", 6, 3, 4),
    gpu_workloads.unroll_append(4, 2, 3),
    gpu_workloads.unroll_gather(4, 2, 3),
    gpu_workloads.slab_gather(3, 4, 5),
    gpu_workloads.sample_categorical(5, 4),
    gpu_workloads.rmsprop_step(100),
    gpu_workloads.adam_step(100),
    gpu_workloads.sum_tree("sum_tree_set", 16, 5),
    gpu_workloads.sum_tree("sum_tree_sample", 16, 5),
)


@pytest.mark.parametrize("workload", SMALL, ids=str)
def test_twins_agree_on_a_workload(workload: Workload) -> None:
    ours, stand_in = (registry.twins(workload.operation)[name] for name in ("cpu", "torch"))
    bound = 1e-2 if "bf16" in workload.shape else 1e-5
    assert gpu_kernels.difference(workload, ours, stand_in, "cpu") < bound


def test_every_operation_is_measured() -> None:
    assert {workload.operation for workload in WORKLOADS} == set(registry.operations())
    assert {workload.operation for workload in SMALL} == set(registry.operations())


def test_a_difference_is_seen_in_any_argument() -> None:
    workload = gpu_workloads.gae(4, 3)
    right = registry.twins("gae")["cpu"]

    def wrong(*arguments: Any, by: float) -> None:
        right(*arguments)
        arguments[-1][0, 0] += by * arguments[-1].abs().max()

    assert gpu_kernels.difference(workload, right, right, "cpu") == 0.0
    assert gpu_kernels.difference(workload, lambda *a: wrong(*a, by=0.5), right, "cpu") == pytest.approx(0.5)
    nan = gpu_kernels.difference(workload, lambda *a: wrong(*a, by=float("nan")), right, "cpu")
    assert nan != nan


@pytest.mark.parametrize(
    ("workload", "moved"),
    [
        # log-ratios, rewards, discounts, targets and advantages, all values, a byte of mask
        (gpu_workloads.vtrace(100, 4096), 5 * 4 * 409_600 + 4 * 413_696 + 409_600),
        # logits and values of 20 and 21 indices; actions 8, three floats, mask 1 of each transition
        (gpu_workloads.vtrace_loss(20, 2, 3), 4 * 40 * 3 + 4 * 42 * 3 + 2 * 4 * 42 + 40 * (8 + 12 + 1)),
        (gpu_workloads.vtrace_loss(20, 2, 3, torch.bfloat16), 2 * 82 * 3 + 2 * 4 * 42 + 40 * (8 + 12 + 1)),
        # two networks from the burn-in on, gradients and errors of everything, weights and priorities
        (gpu_workloads.r2d2_loss(10, 2, 3, 4), 4 * 2 * 12 * 3 + 12 * 15 + 4 * 20 * 3 + 4 * 20 + 2 * 4 * 2),
        (gpu_workloads.gae(10, 2), 4 * 20 * 4 + 4 * 22 + 20),
        (gpu_workloads.n_step(10, 2, 3), 4 * 20 * 3 + 4 * 22 + 20),
        # in and out, two tables of floats; row numbers and flags
        (gpu_workloads.recurrent("recurrent_gather", 100, 10, 7), 2 * 2 * 10 * 28 + 10 * 9),
        (gpu_workloads.recurrent("recurrent_scatter", 100, 10, 7), 2 * 2 * 10 * 28 + 10 * 8),
        (gpu_workloads.unroll_append(9, 4, 5), 2 * 4 * (7056 + 19) + 4 * 16),
        (gpu_workloads.unroll_gather(9, 4, 5), 2 * 4 * 6 * (7056 + 19) + 4 * 8),
        (gpu_workloads.slab_gather(3, 4, 5), 2 * 5 * (7056 + 19) + 5 * 16),
        (gpu_workloads.sample_categorical(10, 3), 10 * (3 * 8 + 16)),
        (gpu_workloads.rmsprop_step(10), 240),
        (gpu_workloads.adam_step(10), 320),
        (gpu_workloads.sum_tree("sum_tree_set", 16, 5), 5 * (4 * 24 + 24)),
        (gpu_workloads.sum_tree("sum_tree_sample", 16, 5), 5 * (4 * 16 + 24)),
    ],
    ids=str,
)
def test_bytes_are_those_of_the_arrays(workload: Workload, moved: int) -> None:
    assert workload.moved == moved


def test_the_same_seed_makes_the_same_arguments_and_another_one_others() -> None:
    first, again, other = (SMALL[0].make(Maker("cpu", seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_sets_overflow_the_caches_and_calls_go_round_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_kernels, "CACHE", 5 * SMALL[0].moved - 1)
    sets = gpu_kernels.argument_sets(SMALL[0], "cpu")
    assert len(sets) == 5
    seen: list[int] = []
    call, calls = gpu_kernels.rounds(lambda log_rhos, *rest: seen.append(log_rhos.data_ptr()), sets)
    call()
    assert calls == len(seen) == 45
    assert seen[:6] == [*(arguments[0].data_ptr() for arguments in sets), seen[0]]


def test_kernels_are_measured_against_the_floor_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    (row,) = gpu_kernels.measure(FakeTimer(), 1e9, lambda: 100.0, "cpu", SMALL[:1])
    assert list(row) == list(gpu_kernels.COLUMNS)
    assert row["kernel"] == "vtrace T4 B3"
    assert row["floor"] == pytest.approx(SMALL[0].moved / 1e9 * 1e6)
    assert row["of floor"] == pytest.approx(row["floor"] / 8.0)
    assert (row["gpu"], row["eager gpu"], row["compiled gpu"]) == (8.0, 8.0, 8.0)
    assert (row["call"], row["eager call"], row["compiled call"], row["faster"]) == (20.0, 20.0, 20.0, 1.0)
    assert row["error"] < 1e-6
    assert row["note"] is None


def test_wrong_results_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._twins["gae"], "cpu", lambda *arguments: arguments[-1].fill_(float("nan")))
    (row,) = gpu_kernels.measure(FakeTimer(), None, lambda: 10.0, "cpu", [gpu_workloads.gae(4, 3)])
    assert row["note"] == "wrong results"
    assert row["error"] is None
    assert row["floor"] is None


def test_what_there_is_no_time_for_is_left_out() -> None:
    left = itertools.chain([100.0], itertools.repeat(1.0))
    done, late = gpu_kernels.measure(FakeTimer(), 1e9, lambda: next(left), "cpu", SMALL[3:5])
    assert done["gpu"] == 8.0
    assert done["note"] == "torch.compile: out of time"
    assert late["gpu"] is None
    assert late["note"] == "out of time"


def test_what_torch_cannot_do_does_not_stop_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise ValueError("no compiler")

    class Uncapturable(FakeTimer):
        def gpu(self, call: Callable[[], Any], calls: int = 1) -> float:
            if "eager" in seen:
                raise RuntimeError("cannot be captured")
            seen.append("eager")
            return super().gpu(call, calls)

    seen: list[str] = []
    monkeypatch.setattr(torch, "compile", fail)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    (row,) = gpu_kernels.measure(Uncapturable(), 1e9, lambda: 100.0, "cpu", SMALL[:1])
    assert row["gpu"] == 8.0
    assert row["eager gpu"] is None
    assert row["note"] == "torch.compile: ValueError"


def test_parts_are_done_skipped_or_failed_each_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def skipped(context: Context) -> gpu.Tables:
        raise SkippedPart("needs the package cupy, which is not installed")

    def broken(context: Context) -> gpu.Tables:
        raise ZeroDivisionError("of something")

    def last(context: Context) -> gpu.Tables:
        context.ends = 0.0
        return {"numbers": [{"name": "a", "us": 1.5}]}

    parts = {"skipped": skipped, "broken": broken, "last": last, "late": last}
    report = run_parts(parts, context())
    assert [entry["status"] for entry in report.values()] == ["skipped", "failed", "done", "skipped"]
    assert report["skipped"]["reason"] == "needs the package cupy, which is not installed"
    assert report["broken"]["reason"] == "ZeroDivisionError('of something')"
    assert "in broken" in report["broken"]["traceback"]
    assert report["late"]["reason"] == "out of time"
    assert report["last"]["tables"] == {"numbers": [{"name": "a", "us": 1.5}]}
    assert re.search(r"== last: done in [\d.]+ s\n\nname   us\na     1\.5\n", capsys.readouterr().out)


def test_a_package_that_is_missing_skips_a_part() -> None:
    gpu.need("torch")
    with pytest.raises(SkippedPart, match="needs the package no-such-thing, which is not installed"):
        gpu.need("no_such_thing")


def test_the_learners_parts_are_skipped_where_its_packages_are_missing() -> None:
    script = """
import sys, time
sys.modules.update(dict.fromkeys(["pydantic"]))
from benchmarks import gpu
parts = {name: gpu.PARTS[name] for name in ("learner suite", "inference", "learner")}
report = gpu.run_parts(parts, gpu.Context(None, time.monotonic() + 100.0))
assert {entry["status"] for entry in report.values()} == {"skipped"}
reasons = {entry["reason"] for entry in report.values()}
assert reasons == {"needs the package pydantic, which is not installed"}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_table_has_a_column_for_every_key() -> None:
    rows = [{"kernel": "a", "us": 12.345}, {"kernel": "long", "us": 1234.5, "note": "x"}, {"kernel": "b"}]
    assert table_of(rows).splitlines() == [
        "kernel    us  note",
        "a       12.3  -",
        "long    1234  x",
        "b          -  -",
    ]


def test_outcomes_are_read_from_pytests_last_line() -> None:
    last = "== 1 failed, 130 passed, 2 skipped, 1 error in 31.5s =="
    assert outcomes(f"...\n{last}\n") == {"passed": 130, "failed": 1, "skipped": 2, "errors": 1}
    assert outcomes("") == {"passed": 0, "failed": 0, "skipped": 0, "errors": 0}


def test_tests_that_fail_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    output = "F.\nFAILED tests/a.py::test_b[c] - assert 1 == 2\n1 failed, 1 passed in 1.0s\n"
    done = subprocess.CompletedProcess([], 1, stdout=output, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **settings: done)
    report = run_parts({"suite": gpu.run_suite}, context())["suite"]
    assert report["status"] == "failed"
    assert report["tables"]["failures"] == [{"failed": "tests/a.py::test_b[c] - assert 1 == 2"}]
    assert report["tables"]["tests"] == [{"passed": 1, "failed": 1, "skipped": 0, "errors": 0, "exit": 1}]


def test_the_suite_is_the_one_of_the_makefile() -> None:
    command = re.search(r"\ntest-kernels-gpu:\n\t\S+ -m pytest (.+)\n", (ROOT / "Makefile").read_text())
    assert command is not None
    assert command[1].split() == gpu.SUITE
    command = re.search(r"\ntest-gpu: venv\n\t\S+ -m pytest (.+)\n", (ROOT / "Makefile").read_text())
    assert command is not None
    assert command[1].split() == gpu.LEARNER_SUITE


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = tmp_path / "report.json"
    assert gpu.main(["--out", str(out)]) == 1
    assert "nothing was tested or measured: needs a GPU" in capsys.readouterr().err
    parts = json.loads(out.read_text())["parts"]
    assert parts.keys() == gpu.PARTS.keys()
    assert {part["status"] for part in parts.values()} == {"skipped"}
    assert all("needs a GPU" in part["reason"] for part in parts.values())


def test_a_report_is_written_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu, "describe_machine", lambda: {"gpu": "pretended"})
    monkeypatch.setitem(gpu.PARTS, "copy", lambda context: {"copy": [{"TB/s": 4.3}]})
    out = tmp_path / "report.json"
    assert gpu.main(["--only", "copy", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["version"] == 1
    assert report["machine"] == {"gpu": "pretended"}
    assert report["parts"]["copy"]["tables"] == {"copy": [{"TB/s": 4.3}]}


def test_the_command_starts_with_what_a_gpu_machine_has() -> None:
    """That is torch, numba-cuda and pytest, without an installed seedflow."""
    absent = ("hypothesis", "pydantic", "yaml", "gymnasium", "grpc", "dask", "rich", "cupy")
    hidden = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))"
    script = f"{hidden}\nfrom benchmarks import gpu\ngpu.main(['-h'])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m benchmarks.gpu")

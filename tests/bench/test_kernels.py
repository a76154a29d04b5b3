"""The kernels' benchmark measures equals, and reports what it leaves out."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from seedflow import kernels
from seedflow.bench import kernels as bench
from seedflow.bench import peers
from seedflow.cli import cli


def test_the_command_prints_measurements_as_text_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PARTS", (bench.returns,))
    text = CliRunner().invoke(cli, ["bench", "kernels"])
    assert text.exit_code == 0, text.output
    assert text.output.startswith("gae, T = 20, B = 128\n")
    output = CliRunner().invoke(cli, ["bench", "kernels", "--json"]).output
    gae, n_step = json.loads(output)["measurements"]
    assert gae["seconds"].keys() == n_step["seconds"].keys() == {"public function", "torch eager"}


def test_the_number_of_torchs_threads_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PARTS", ())
    before = torch.get_num_threads()
    assert list(bench.measure()) == []
    assert torch.get_num_threads() == before


def test_the_graph_that_is_compared_with_is_the_same_loss() -> None:
    inputs: dict[str, Any] = bench.unroll(20, 128)
    del inputs["log_rhos"]
    inputs["actions"] = torch.randint(0, 6, (20, 128), generator=torch.Generator().manual_seed(0))
    inputs["behaviour_log_probs"] = torch.full((20, 128), -1.5)
    logits = torch.randn(21, 128, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    fused = kernels.vtrace_loss(logits, **inputs, **bench.CLIPS, **bench.COSTS).total
    graph = bench.graph_of_vtrace_loss(logits, **inputs)
    torch.testing.assert_close(fused, graph)
    (ours,), (theirs,) = (torch.autograd.grad(loss, logits) for loss in (fused, graph))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-9)


def test_the_tree_in_numpy_draws_the_same_leaves() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(1000)
    found, _ = peers.sum_tree_peers(1000, values, 64)
    tree = kernels.sum_tree_new(1000)
    kernels.sum_tree_set(tree, torch.arange(1000), torch.from_numpy(values))
    index, value, uniform = rng.integers(0, 1000, 64), rng.random(64), rng.random(64)
    found["numpy"].update(index, value)
    kernels.sum_tree_set(tree, torch.from_numpy(index), torch.from_numpy(value))
    drawn = kernels.sum_tree_sample(tree, torch.from_numpy(uniform)).leaf
    np.testing.assert_array_equal(found["numpy"].sample(uniform), drawn.numpy())


def test_a_library_that_does_not_load_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"no {name}\nfurther lines")

    monkeypatch.setattr(importlib, "import_module", refuse)
    found, notes = peers.sum_tree_peers(10, np.ones(10), 4)
    assert found.keys() == {"numpy"}
    assert notes == (
        "left out: cpprb (ImportError: no cpprb)",
        "left out: torchrl (ImportError: no torchrl._torchrl)",
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_benchmark_runs() -> None:
    command = [sys.executable, "-m", "seedflow.cli", "bench", "kernels", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["measurements"]
    assert [row["name"].split(",")[0] for row in rows] == [
        "vtrace",
        "vtrace_loss",
        "r2d2_loss",
        "gae",
        "n_step",
        "sample_categorical",
        "sample_categorical",
        "adam_step",
        "rmsprop_step",
        "adam_step",
        "rmsprop_step",
        "recurrent_gather and recurrent_scatter",
        "unroll_gather",
        "sum_tree_sample",
        "sum_tree_set",
    ]
    assert sum(len(row["targets"]) for row in rows) >= 8

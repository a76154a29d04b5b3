"""An update of V-trace, and what it says of numbers that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from seedflow import load_config
from seedflow.algos.registry import make_algorithm
from seedflow.errors import NumericalError
from seedflow.rollout.storage import UnrollBatch
from seedflow.specs import ArraySpec, EnvSpec

T, B = 5, 4
SPEC = EnvSpec((ArraySpec("observation", (3,), np.dtype("float32")),), num_actions=2)


def batch() -> UnrollBatch:
    generator = torch.Generator().manual_seed(1)
    flags = torch.zeros(T + 1, B, dtype=torch.bool)
    fields = {
        "observation": torch.randn(T + 1, B, 3, generator=generator),
        "reward": torch.randn(T + 1, B, generator=generator),
        "first": flags,
        "terminated": flags,
        "truncated": flags,
        "action": torch.randint(0, 2, (T + 1, B), generator=generator),
        "behaviour_log_prob": torch.full((T + 1, B), -0.7),
    }
    return UnrollBatch(fields, ())


def learning(check: bool):  # type: ignore[no-untyped-def]
    config = load_config(
        "cartpole_vtrace",
        [f"kernels.check={str(check).lower()}", "device=cpu", "algo.reward_scale=1"],
    )
    return make_algorithm(config, SPEC).learning


@pytest.mark.parametrize("check", [True, False])
def test_an_update_changes_the_weights_and_reports_a_finite_loss(check: bool) -> None:
    learner = learning(check)
    before = learner.parameters.parameter.detach().clone()
    numbers = learner.update(batch(), 0.01)
    assert numbers["loss/finite"] == 1.0
    assert all(math.isfinite(value) for value in numbers.values())
    assert not torch.equal(learner.parameters.parameter, before)


def test_an_infinite_reward_shows_in_the_report_of_that_update_alone() -> None:
    learner, spoiled = learning(check=False), batch()
    spoiled.fields["reward"][2, 1] = math.inf
    before = learner.parameters.parameter.detach().clone()
    assert learner.update(spoiled, 0.0)["loss/finite"] == 0.0
    with torch.no_grad():
        learner.parameters.parameter.copy_(before)
    assert learner.update(batch(), 0.0)["loss/finite"] == 1.0


def test_with_the_check_a_nan_ends_the_update_and_is_named_with_its_place() -> None:
    learner, spoiled = learning(check=True), batch()
    before = learner.parameters.parameter.detach().clone()
    spoiled.fields["reward"][2, 1] = math.nan
    with pytest.raises(
        NumericalError, match=r"^reward\[2, 1\] is nan \(float32 \[6, 4\] on cpu, not finite in 1 of 24"
    ):
        learner.update(spoiled, 0.01)
    spoiled = batch()
    spoiled.fields["observation"][0, 3, 2] = math.nan
    with pytest.raises(NumericalError, match=r"^logits\[0, 3, 0\] is nan"):
        learner.update(spoiled, 0.01)
    assert torch.equal(learner.parameters.parameter, before)


def test_with_the_check_a_gradient_is_named_by_its_parameter() -> None:
    learner, spoiled = learning(check=True), batch()
    spoiled.fields["reward"][:] = 3e38  # finite, as the value error is, but not what is made of it
    with pytest.raises(NumericalError, match=r"^gradient of [a-z_.0-9]+\[[0-9, ]+\] is (nan|-?inf)"):
        learner.update(spoiled, 0.01)

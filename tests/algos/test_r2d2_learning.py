"""An update of R2D2: burn-in, double Q-learning, target network, priorities."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seedflow import load_config
from seedflow.algos import make_algorithm
from seedflow.algos.r2d2.acting import Q_BEST, Q_TAKEN
from seedflow.algos.r2d2.learning import R2D2Learning
from seedflow.algos.r2d2.loss import q_values, r2d2_loss
from seedflow.algos.r2d2.priorities import ActingPriority
from seedflow.config import R2D2Config
from seedflow.errors import NumericalError
from seedflow.kernels.r2d2_loss import inverse_rescale, rescale
from seedflow.networks import DuelingQ, NetworkInput
from seedflow.replay.layout import ReplaySpec
from seedflow.rollout.storage import UnrollBatch
from seedflow.specs import ArraySpec, EnvSpec

SPEC = EnvSpec((ArraySpec("observation", (3,), np.dtype("float32")),), num_actions=2)
BURN_IN, UNROLL, B = 4, 8, 3
LENGTH = BURN_IN + UNROLL


def learning(*overrides: str) -> R2D2Learning:
    settings = {
        "device": "cpu",
        "algo": {"name": "r2d2", "target_period": 3, "n_step": 2},
        "replay": {"chunk": 4, "burn_in": BURN_IN, "unroll": UNROLL, "period": 4},
        "network": {
            "hidden": [8],
            "head_size": 8,
            "core": "lstm",
            "core_size": 8,
            "inputs": ["previous_action", "previous_reward"],
        },
    }
    made = make_algorithm(load_config(settings, overrides), SPEC).learning
    assert isinstance(made, R2D2Learning)
    return made


def batch(seed: int = 1, firsts: Sequence[tuple[int, int]] = ()) -> UnrollBatch:
    """Random sequences; an episode begins at each (index, sequence) of `firsts`."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(LENGTH, B, dtype=torch.bool)
    for t, b in firsts:
        first[t, b] = True
    fields = {
        "observation": torch.randn(LENGTH, B, 3, generator=generator),
        "reward": torch.randn(LENGTH, B, generator=generator),
        "first": first,
        "terminated": torch.roll(first, -1, 0),
        "truncated": torch.zeros(LENGTH, B, dtype=torch.bool),
        "action": torch.randint(0, 2, (LENGTH, B), generator=generator),
    }
    hidden, cell = (torch.randn(B, 8, generator=generator) for _ in range(2))
    return UnrollBatch(fields, (torch.randint(0, 3, (B,), generator=generator), hidden, cell))


ONES = torch.ones(B)


def test_burning_in_changes_no_value_and_lets_no_gradient_through() -> None:
    learner, sequences = learning(), batch(firsts=[(2, 0), (BURN_IN, 1), (7, 2)])
    fields = sequences.fields
    inputs = NetworkInput((fields["observation"],), fields["reward"], fields["first"], fields["action"])
    whole, _ = learner.network(inputs, sequences.state)
    state = tuple(s.requires_grad_() if s.is_floating_point() else s for s in sequences.state)
    trained = q_values(learner.network, UnrollBatch(fields, state), BURN_IN)
    torch.testing.assert_close(trained, whole[BURN_IN:], rtol=0, atol=1e-6)
    trained.sum().backward()
    assert state[1].grad is None


def test_a_beginning_inside_the_burn_in_resets_the_state() -> None:
    learner, sequences = learning(), batch(firsts=[(2, 0)])
    q = q_values(learner.network, sequences, BURN_IN)
    other = UnrollBatch(
        sequences.fields, tuple(s + 1 if s.is_floating_point() else s for s in sequences.state)
    )
    changed = q_values(learner.network, other, BURN_IN)
    assert torch.equal(q[:, 0], changed[:, 0])
    assert not torch.equal(q[:, 1], changed[:, 1])


def test_without_burn_in_the_stored_state_is_that_of_the_first_trained_index() -> None:
    learner, sequences = learning("replay.burn_in=0", "replay.unroll=12", "replay.period=12"), batch()
    fields = sequences.fields
    inputs = NetworkInput((fields["observation"],), fields["reward"], fields["first"], fields["action"])
    assert torch.equal(q_values(learner.network, sequences, 0), learner.network(inputs, sequences.state)[0])


# One sequence of BURN_IN + 6 indices: at the j-th trained index reward j, q*_j = 100 j, Q(o_t, a_t) = 0.
# With discount 1/2 the targets can be worked out in the head.
ACT, BEST = 0, 1


def targets(
    terminated: Sequence[int] = (), truncated: Sequence[int] = (), first: Sequence[int] = (), n_step: int = 3
) -> list[float]:
    """Targets of the trained indices; places count from the first of them on."""
    places = torch.arange(-BURN_IN, 6)
    flags = {
        name: torch.tensor([[p in at] for p in places.tolist()])
        for name, at in (("terminated", terminated), ("truncated", truncated), ("first", first))
    }
    fields = {"reward": places.float().unsqueeze(1), "action": torch.full((len(places), 1), ACT), **flags}
    q_online = torch.tensor([0.0, 1.0]).expand(6, 1, 2)  # prefers BEST, which the target network evaluates
    q_target = torch.stack([torch.full((6,), -7.0), rescale(100.0 * torch.arange(6.0), 0.0)], -1).unsqueeze(1)
    config = R2D2Config(discount=0.5, n_step=n_step, rescale_epsilon=0.0)
    finite = torch.ones((), dtype=torch.int32)
    loss, _ = r2d2_loss(q_online, q_target, UnrollBatch(fields, ()), torch.ones(1), BURN_IN, config, finite)
    return [round(y, 3) for y in inverse_rescale(loss.td_errors[:-1, 0].double(), 0.0).tolist()]


Y = [1 + 2 / 2 + 3 / 4 + 300 / 8, 2 + 3 / 2 + 4 / 4 + 400 / 8, 3 + 4 / 2 + 5 / 4 + 500 / 8]
END = [4 + 5 / 2 + 500 / 4, 5 + 500 / 2]  # the sequence's end lies within n steps


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        pytest.param({}, [*Y, *END], id="the end of the sequence in the window"),
        pytest.param(
            {"truncated": [3], "first": [4]},
            [Y[0], 2 + 3 / 2 + 300 / 4, 3 + 300 / 2, 0.0, END[1]],
            id="truncated in the window",
        ),
        pytest.param(
            {"terminated": [3], "first": [4]},
            [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3.0, 0.0, END[1]],
            id="terminated in the window",
        ),
        pytest.param(
            {"terminated": [3], "truncated": [3], "first": [4]},
            [1 + 2 / 2 + 3 / 4, 2 + 3 / 2, 3.0, 0.0, END[1]],
            id="both flags at once",
        ),
        pytest.param({"terminated": [-3], "first": [-2]}, [*Y, *END], id="a beginning inside the burn-in"),
        pytest.param({"terminated": [-1], "first": [0]}, [*Y, *END], id="a beginning at the first trained"),
        pytest.param({"n_step": 1}, [1 + 50, 2 + 100, 3 + 150, 4 + 200, 5 + 250], id="one step"),
        pytest.param({"first": [1, 2, 3, 4, 5]}, [0.0] * 5, id="no valid index at all"),
    ],
)
def test_targets_worked_out_by_hand(flags: dict[str, Any], expected: list[float]) -> None:
    assert targets(**flags) == pytest.approx(expected, abs=2e-3)


def test_the_target_network_follows_every_so_many_updates() -> None:
    learner, sequences = learning(), batch()
    frozen = copy.deepcopy(learner.target.state_dict())
    for update in range(1, 7):
        learner.update(sequences, ONES, 0.01)
        if update % 3 == 0:
            frozen = copy.deepcopy(learner.network.state_dict())
        for name, value in learner.target.state_dict().items():
            assert torch.equal(value, frozen[name]), (update, name)
        assert not torch.equal(
            learner.parameters.parameter, learner.target.value_head[0].weight.flatten()[:0]
        )
    assert not any(p.requires_grad for p in learner.target.parameters())


def test_updates_on_the_same_sequences_make_their_errors_small() -> None:
    learner, sequences = learning("algo.target_period=20", "algo.discount=0.5"), batch()
    updates = [learner.update(sequences, ONES, 0.005) for _ in range(400)]
    assert updates[-1].diagnostics["loss/td_error"] < 0.1 * updates[0].diagnostics["loss/td_error"]
    assert (updates[-1].priorities < 0.2 * updates[0].priorities).all()
    assert all(math.isfinite(value) for u in updates for value in u.diagnostics.values())


def test_a_sequence_without_weight_changes_nothing_and_still_gets_a_priority() -> None:
    learner, sequences = learning(), batch()
    before = learner.parameters.parameter.detach().clone()
    updated = learner.update(sequences, torch.zeros(B), 0.01)
    assert torch.equal(learner.parameters.parameter, before)
    assert (updated.priorities > 0.01).all()


def test_what_a_checkpoint_holds_makes_the_next_update_the_same() -> None:
    one, two = learning(), learning("seed=2")
    for seed in range(4):
        one.update(batch(seed), ONES, 0.01)
    two.network.load_state_dict(one.network.state_dict())
    two.restore({name: value.clone() for name, value in one.tensors().items()})
    for seed in range(4, 8):
        first, second = (learner.update(batch(seed), ONES, 0.01) for learner in (one, two))
        assert first.diagnostics == second.diagnostics
    assert torch.equal(one.parameters.parameter, two.parameters.parameter)


def test_with_the_check_a_nan_ends_the_update_and_is_named_with_its_place() -> None:
    learner, spoiled = learning("kernels.check=true"), batch()
    spoiled.fields["reward"][2, 1] = math.nan
    with pytest.raises(NumericalError, match=r"^reward\[2, 1\] is nan"):
        learner.update(spoiled, ONES, 0.01)


@pytest.mark.parametrize(("burn_in", "unroll", "period"), [(4, 8, 4), (4, 8, 8), (0, 4, 4), (8, 8, 4)])
def test_the_initial_priority_is_that_of_an_update_with_equal_networks(
    burn_in: int, unroll: int, period: int
) -> None:
    chunk, rng = 4, np.random.default_rng(0)
    spec = ReplaySpec(SPEC.observation, (), chunk, burn_in, unroll, period)
    config = R2D2Config(n_step=2, discount=0.9)
    indices = 10 * chunk + spec.bootstrap
    q = torch.from_numpy(rng.standard_normal((indices, 1, 2)).astype(np.float32))
    first = rng.random(indices) < 0.2
    lane = {
        "reward": rng.standard_normal(indices).astype(np.float32),
        "terminated": np.roll(first, -1),
        "truncated": np.zeros(indices, bool),
        "first": first,
        "action": rng.integers(0, 2, indices),
    }
    taken = q[:, 0].gather(-1, torch.from_numpy(lane["action"])[:, None])[:, 0].numpy()
    recorded = lane | {Q_TAKEN.name: taken, Q_BEST.name: q[:, 0].amax(-1).numpy()}
    priority, found = ActingPriority(spec, config), 0
    for position in range(10):
        begin = (position + 1) * chunk - burn_in - unroll
        completes = begin >= 0 and begin % period == 0
        part = slice(position * chunk, position * chunk + spec.rows)
        given = priority.chunk(5, {name: value[part] for name, value in recorded.items()}, completes)
        if not completes:
            assert given is None
            continue
        trained = slice(begin + burn_in, begin + spec.length)
        fields = {name: torch.from_numpy(value[trained]).unsqueeze(1) for name, value in lane.items()}
        finite = torch.ones((), dtype=torch.int32)
        loss, _ = r2d2_loss(q[trained], q[trained], UnrollBatch(fields, ()), torch.ones(1), 0, config, finite)
        assert given == pytest.approx(loss.priorities.item(), rel=1e-6)
        found += 1
    assert found >= 2
    priority.end_lane(5)
    assert not priority._lanes


def test_advantages_have_no_mean_in_dueling_heads() -> None:
    network = learning().network
    assert isinstance(network, DuelingQ)
    x: Tensor = torch.randn(5, 2, network.size)
    q = network.value_head(x) + network.advantage_head(x) - network.advantage_head(x).mean(-1, keepdim=True)
    torch.testing.assert_close(q.mean(-1, keepdim=True), network.value_head(x))

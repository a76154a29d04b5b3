"""The V-trace loss against the formulas, in float64."""

import numpy as np
import pytest
import torch

from seedflow.algos.vtrace.loss import VTraceTargets, vtrace_loss
from seedflow.config import VTraceConfig

T, B, A = 9, 5, 3


def unrolls(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    first = rng.random((T + 1, B)) < 0.25
    ended = np.roll(first, -1, axis=0)  # the index before a first is an episode's last
    terminated = ended & (rng.random((T + 1, B)) < 0.5)
    return {
        "reward": torch.tensor(3 * rng.standard_normal((T + 1, B)), dtype=torch.float32),
        "first": torch.tensor(first),
        "terminated": torch.tensor(terminated),
        "truncated": torch.tensor(ended & ~terminated),
        "action": torch.tensor(rng.integers(0, A, (T + 1, B))),
        "behaviour_log_prob": torch.tensor(-1 - rng.random((T + 1, B)), dtype=torch.float32),
    }


def reference(
    logits: np.ndarray, values: np.ndarray, fields: dict[str, torch.Tensor], config: VTraceConfig
) -> dict[str, float]:
    """The terms of the loss, one transition after the other."""
    data = {name: tensor.numpy() for name, tensor in fields.items()}
    log_policy = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    terms: dict[str, list[float]] = {"policy": [], "value": [], "entropy": []}
    for b in range(B):
        trace, vs_next = 0.0, values[T, b]
        for t in reversed(range(T)):
            valid = not data["first"][t + 1, b]
            discount = config.discount * (valid and not data["terminated"][t + 1, b])
            reward = 0.5 * float(np.clip(data["reward"][t + 1, b], -1.0, 1.0))
            log_prob = log_policy[t, b, data["action"][t, b]]
            ratio = np.exp(log_prob - data["behaviour_log_prob"][t, b])
            target = reward + discount * values[t + 1, b]
            delta = valid * min(config.rho_bar, ratio) * (target - values[t, b])
            trace = delta + discount * config.trace_decay * min(config.c_bar, ratio) * trace
            vs = values[t, b] + trace
            advantage = min(config.pg_rho_bar, ratio) * (reward + discount * vs_next - values[t, b])
            if valid:
                terms["policy"].append(-log_prob * advantage)
                terms["value"].append(0.5 * trace**2)
                terms["entropy"].append(-np.sum(np.exp(log_policy[t, b]) * log_policy[t, b]))
            vs_next = vs
    return {name: float(np.mean(values)) for name, values in terms.items()}


@pytest.mark.parametrize("seed", range(5))
def test_every_term_is_a_mean_over_valid_transitions(seed: int) -> None:
    config = VTraceConfig(
        discount=0.9, rho_bar=1.2, c_bar=0.9, trace_decay=0.8, reward_clip=1.0, reward_scale=0.5
    )
    fields = unrolls(seed)
    rng = np.random.default_rng(100 + seed)
    logits, values = rng.standard_normal((T + 1, B, A)), rng.standard_normal((T + 1, B))
    expected = reference(logits, values, fields, config)
    targets = VTraceTargets.from_unrolls(fields, config)
    as_float = [torch.tensor(x, dtype=torch.float32) for x in (logits, values)]
    loss, measured = vtrace_loss(*as_float, targets, config, entropy_cost=0.3)
    for name, value in expected.items():
        assert measured[f"loss/{name}"].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name
    total = expected["policy"] + 0.5 * expected["value"] - 0.3 * expected["entropy"]
    assert loss.item() == pytest.approx(total, rel=1e-4, abs=1e-5)


def test_what_is_no_transition_has_no_gradient() -> None:
    fields = unrolls(seed=1)
    logits = torch.zeros(T + 1, B, A, requires_grad=True)
    values = torch.zeros(T + 1, B, requires_grad=True)
    config = VTraceConfig()
    loss, _ = vtrace_loss(logits, values, VTraceTargets.from_unrolls(fields, config), config, 0.0)
    loss.backward()
    assert logits.grad is not None
    assert values.grad is not None
    invalid = fields["first"][1:]
    assert invalid.any()
    assert not logits.grad[:-1][invalid].any()
    assert not values.grad[:-1][invalid].any()
    assert not logits.grad[-1].any()
    assert not values.grad[-1].any()


def test_a_batch_without_any_transition_is_no_division_by_zero() -> None:
    fields = unrolls(seed=1) | {"first": torch.ones(T + 1, B, dtype=torch.bool)}
    config = VTraceConfig()
    targets = VTraceTargets.from_unrolls(fields, config)
    loss, measured = vtrace_loss(torch.zeros(T + 1, B, A), torch.zeros(T + 1, B), targets, config, 0.01)
    assert loss.item() == 0.0
    assert all(torch.isfinite(value) for value in measured.values())

"""V-trace against numbers worked out apart from the code, its special cases, and its errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from seedflow.errors import SpecError
from seedflow.kernels import VTraceReturns, vtrace

UNCLIPPED = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "trace_decay": 1.0}

# T = B = 5, k counts over (t, b): log ratio 5 (k / 25 - 0.5), discount 0.9 / (b + 1), r = k, V = k / 5,
# bootstrap b + 1, rho_bar 3.7, pg_rho_bar 2.2, c_bar 1, lambda 1; computed in float64.
GOLDEN_VS = [
    [0.929816, 0.556437, 0.816895, 1.189767, 1.654995],
    [12.58608, 6.122604, 6.014773, 6.858315, 8.223335],
    [53.250231, 29.472213, 27.545145, 29.03719, 31.861155],
    [84.997052, 62.252527, 60.632278, 66.036553, 76.130182],
    [66.53, 69.69, 72.85, 76.01, 79.17],
]
GOLDEN_ADVANTAGES = [
    [0.929816, 0.356437, 0.416895, 0.589767, 0.854995],
    [11.58608, 4.922604, 4.614773, 5.258315, 6.423335],
    [51.250231, 27.272213, 25.145145, 27.914655, 33.616118],
    [118.505139, 88.928326, 78.001, 69.30495, 64.79132],
    [37.18, 38.94, 40.7, 42.46, 44.22],
]


def golden(device: str, trailing: tuple[int, ...] = ()) -> VTraceReturns:
    """Run the golden inputs, repeated over trailing axes."""
    k = torch.arange(25.0).reshape(5, 5)
    b = torch.arange(5.0)
    inputs = [5 * (k / 25 - 0.5), k, (0.9 / (b + 1)).expand(5, 5), torch.cat([k / 5, b[None] + 1])]
    wide = [x[(..., *[None] * len(trailing))].expand(*x.shape, *trailing).contiguous() for x in inputs]
    return vtrace(*(x.to(device) for x in wide), rho_bar=3.7, c_bar=1.0, pg_rho_bar=2.2, trace_decay=1.0)


def unroll(device: str, steps: int = 5, batch: int = 3) -> list[torch.Tensor]:
    """Log ratios of zero, random rewards, discounts and values."""
    generator = torch.Generator().manual_seed(5)
    zeros = torch.zeros(steps, batch)
    rewards = torch.randn(steps, batch, generator=generator)
    discounts = torch.rand(steps, batch, generator=generator)
    values = torch.randn(steps + 1, batch, generator=generator)
    return [x.to(device) for x in (zeros, rewards, discounts, values)]


def test_golden_values(device: str) -> None:
    vs, advantages = golden(device)
    np.testing.assert_allclose(vs.cpu(), GOLDEN_VS, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(advantages.cpu(), GOLDEN_ADVANTAGES, rtol=2e-6, atol=2e-6)


def test_trailing_axes_are_columns_of_their_own(device: str) -> None:
    plain, wide = golden(device), golden(device, (2, 3))
    for narrow, result in zip(plain, wide, strict=True):
        assert result.shape == (5, 5, 2, 3)
        torch.testing.assert_close(result, narrow[..., None, None].expand_as(result))


def test_one_column_equals_that_column_of_a_batch(device: str) -> None:
    inputs = unroll(device)
    whole = vtrace(*inputs, **UNCLIPPED)
    column = vtrace(*(x[:, 1:2].contiguous() for x in inputs), **UNCLIPPED)
    torch.testing.assert_close(column.vs, whole.vs[:, 1:2])
    torch.testing.assert_close(column.advantages, whole.advantages[:, 1:2])


def test_on_policy_with_lambda_one_the_target_is_the_n_step_return(device: str) -> None:
    log_rhos, rewards, discounts, values = unroll(device)
    returns = [values[-1]]
    for t in reversed(range(5)):
        returns.insert(0, rewards[t] + discounts[t] * returns[0])
    vs, advantages = vtrace(log_rhos, rewards, discounts, values, **UNCLIPPED)
    torch.testing.assert_close(vs, torch.stack(returns[:-1]))
    torch.testing.assert_close(advantages, vs - values[:-1])


def test_with_lambda_zero_the_target_is_the_one_step_return(device: str) -> None:
    log_rhos, rewards, discounts, values = unroll(device)
    vs, _ = vtrace(log_rhos, rewards, discounts, values, **{**UNCLIPPED, "trace_decay": 0.0})
    torch.testing.assert_close(vs, rewards + discounts * values[1:])


def test_between_episodes_the_target_is_the_value_and_the_advantage_zero(device: str) -> None:
    log_rhos, rewards, discounts, values = unroll(device)
    valid = torch.ones(5, 3, dtype=torch.bool, device=device)
    valid[2] = False
    discounts[2] = 0.0
    vs, advantages = vtrace(log_rhos, rewards, discounts, values, valid, **UNCLIPPED)
    torch.testing.assert_close(vs[2], values[2])
    assert not advantages[2].any()
    torch.testing.assert_close(vs[1], rewards[1] + discounts[1] * values[2])  # bootstraps, goes no further


def test_a_nan_between_episodes_is_masked_and_elsewhere_shows(device: str) -> None:
    log_rhos, rewards, discounts, values = unroll(device)
    valid = torch.ones(5, 3, dtype=torch.bool, device=device)
    valid[2], discounts[2], log_rhos[2] = False, 0.0, float("nan")
    masked = vtrace(log_rhos, rewards, discounts, values, valid, **UNCLIPPED)
    assert all(result.isfinite().all() for result in masked)
    log_rhos[3, 0] = float("nan")
    vs, advantages = vtrace(log_rhos, rewards, discounts, values, valid, **UNCLIPPED)
    assert vs[3, 0].isnan()
    assert advantages[3, 0].isnan()
    assert vs[:, 1:].isfinite().all()


@pytest.mark.parametrize("log_rho", [-1e30, -float("inf"), 1e30, float("inf")])
def test_extreme_ratios_are_zero_or_clipped(log_rho: float, device: str) -> None:
    log_rhos, rewards, discounts, values = unroll(device)
    vs, advantages = vtrace(log_rhos + log_rho, rewards, discounts, values, **UNCLIPPED)
    on_policy = vtrace(log_rhos, rewards, discounts, values, **UNCLIPPED)
    if log_rho > 0:
        torch.testing.assert_close(vs, on_policy.vs)
        torch.testing.assert_close(advantages, on_policy.advantages)
    else:
        torch.testing.assert_close(vs, values[:-1])
        torch.testing.assert_close(advantages, torch.zeros_like(vs))


def test_results_are_constants_for_the_gradient(device: str) -> None:
    inputs = [x.requires_grad_() for x in unroll(device)]
    assert not any(result.requires_grad for result in vtrace(*inputs, **UNCLIPPED))


def test_errors_name_the_argument() -> None:
    log_rhos, rewards, discounts, values = unroll("cpu")
    valid = torch.ones(5, 3, dtype=torch.bool)

    def error(*inputs: torch.Tensor, out: VTraceReturns | None = None) -> str:
        with pytest.raises(SpecError) as caught:
            vtrace(*inputs, **UNCLIPPED, out=out)
        return str(caught.value)

    assert error(log_rhos[:, 0], rewards, discounts, values).startswith(
        "log_rhos has rank 1 (float32 [5] on cpu)"
    )
    assert error(log_rhos, rewards[..., None], discounts, values).startswith("rewards has rank 3")
    assert error(log_rhos, rewards, discounts[:-1], values).startswith("discounts is float32 [4, 3] on cpu")
    assert "values is float32 [5, 3] on cpu: expected shape [6, 3]" in error(
        log_rhos, rewards, discounts, values[1:]
    )
    assert "rewards is float64" in error(log_rhos, rewards.double(), discounts, values)
    assert "valid is float32 [5, 3] on cpu: expected dtype bool" in error(
        log_rhos, rewards, discounts, values, valid.float()
    )
    assert "rewards (float32 [5, 3] on cpu) has strides [1, 5]" in error(
        log_rhos, rewards.T.contiguous().T, discounts, values
    )
    assert "it on cpu" in error(log_rhos, rewards.to("meta"), discounts, values)
    out = VTraceReturns(torch.empty(5, 3), torch.empty(5, 4))
    assert error(log_rhos, rewards, discounts, values, out=out).startswith("out.advantages")

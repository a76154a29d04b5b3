"""Sampled actions follow their probabilities; log-probability and entropy are torch's."""

from __future__ import annotations

import pytest
import torch

from seedflow.errors import SpecError
from seedflow.kernels import CategoricalSample, sample_categorical


def generator(device: str, seed: int = 0) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


@pytest.mark.parametrize("actions", [1, 2, 3, 18])
def test_actions_come_as_often_as_their_probability_says(actions: int, device: str) -> None:
    count = 60_000
    logits = torch.linspace(-2.0, 1.0, actions, device=device).expand(count, actions).contiguous()
    sample = sample_categorical(logits, generator(device))
    expected = torch.softmax(logits[0], dim=0)
    counted = torch.bincount(sample.action, minlength=actions) / count
    spread = (expected * (1.0 - expected) / count).sqrt()
    assert ((counted - expected).abs() <= 4.5 * spread + 1e-9).all()


def test_log_probability_and_entropy_are_torchs(device: str) -> None:
    logits = 3.0 * torch.randn(500, 7, device=device, generator=generator(device))
    sample = sample_categorical(logits, generator(device))
    policy = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(sample.log_prob, policy.log_prob(sample.action), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sample.entropy, policy.entropy(), rtol=1e-5, atol=1e-6)


def test_a_masked_action_is_never_sampled(device: str) -> None:
    logits = torch.zeros(20_000, 6, device=device)
    logits[:, [0, 2, 5]] = -float("inf")
    sample = sample_categorical(logits, generator(device))
    assert set(sample.action.tolist()) == {1, 3, 4}
    torch.testing.assert_close(sample.log_prob, torch.full_like(sample.log_prob, -1.0986123))
    torch.testing.assert_close(sample.entropy, torch.full_like(sample.entropy, 1.0986123))


@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-24, 1.0])
def test_the_ends_of_the_random_numbers_choose_something_possible(number: float, device: str) -> None:
    logits = torch.tensor([[-float("inf"), -1.0, 2.0, -float("inf")]], device=device)
    sample = sample_categorical(logits, torch.full_like(logits, number))
    assert sample.action.item() in (1, 2)
    assert sample.log_prob.isfinite().all()


def test_equal_seeds_give_equal_actions_and_a_generator_goes_on(device: str) -> None:
    logits = torch.randn(200, 4, device=device, generator=generator(device))
    source = generator(device, 7)
    one, two = (sample_categorical(logits, source).action for _ in range(2))
    assert torch.equal(one, sample_categorical(logits, generator(device, 7)).action)
    assert not torch.equal(one, two)


def test_a_generator_is_a_source_of_uniform_numbers(device: str) -> None:
    logits = torch.randn(50, 4, device=device, generator=generator(device))
    numbers = torch.rand(50, 4, device=device, generator=generator(device, 3))
    drawn, given = sample_categorical(logits, generator(device, 3)), sample_categorical(logits, numbers)
    assert all(torch.equal(a, b) for a, b in zip(drawn, given, strict=True))


def test_results_are_constants_for_the_gradient(device: str) -> None:
    logits = torch.zeros(3, 2, device=device, requires_grad=True)
    assert not any(x.requires_grad for x in sample_categorical(logits, generator(device)))


def test_errors_name_the_argument() -> None:
    logits = torch.zeros(4, 3)
    with pytest.raises(SpecError, match="logits is float64"):
        sample_categorical(logits.double(), generator("cpu"))
    with pytest.raises(SpecError, match=r"logits .* has strides \[1, 4\]"):
        sample_categorical(torch.zeros(3, 4).T, generator("cpu"))
    with pytest.raises(SpecError, match=r"random is float32 \[4\] on cpu|random has rank 1"):
        sample_categorical(logits, torch.rand(4))
    out = CategoricalSample(torch.zeros(4), torch.zeros(4), torch.zeros(4))
    with pytest.raises(SpecError, match=r"out\.action is float32"):
        sample_categorical(logits, generator("cpu"), out=out)

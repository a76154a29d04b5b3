"""Sampling actions."""

import torch

from seedflow.networks.distributions import sample_categorical


def test_actions_are_sampled_by_their_probability() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0]).expand(40_000, 3)
    actions, log_probs = sample_categorical(logits, torch.Generator().manual_seed(1))
    expected = torch.softmax(logits[0], dim=0)
    counted = torch.bincount(actions, minlength=3) / len(actions)
    torch.testing.assert_close(counted, expected, rtol=0, atol=0.01)
    torch.testing.assert_close(log_probs, expected.log()[actions])


def test_equal_seeds_give_equal_actions() -> None:
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(3))
    one, _ = sample_categorical(logits, torch.Generator().manual_seed(7))
    two, _ = sample_categorical(logits, torch.Generator().manual_seed(7))
    assert torch.equal(one, two)

"""Published weights: newest wins, and what is in use stays."""

import torch
from torch import nn

from seedflow.learner.arena import Arena
from seedflow.learner.weights import PinnedNetworks, PublishedWeights

CPU = torch.device("cpu")


def test_a_pinned_version_does_not_change_while_newer_ones_are_published() -> None:
    weights = PublishedWeights(Arena(CPU), 8)
    networks = PinnedNetworks(nn.Linear(3, 2), weights)
    flat = torch.zeros(8)
    weights.publish(flat + 1, version=1)
    pinned, version = networks.pin()
    assert version == 1
    for newer in range(2, 10):
        weights.publish(flat + newer, newer)
        assert all((parameter == 1).all() for parameter in pinned.parameters())
    newest, version = networks.pin()
    assert version == 9
    assert all((parameter == 9).all() for parameter in newest.parameters())
    weights.close()


def test_inference_never_reads_the_trained_tensors() -> None:
    network = nn.Linear(3, 2)
    weights = PublishedWeights(Arena(CPU), 8)
    flat = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    weights.publish(flat, 0)
    published, _ = PinnedNetworks(network, weights).pin()
    before = [parameter.clone() for parameter in published.parameters()]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        flat.zero_()
    assert not any(parameter.any() for parameter in network.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, published.parameters(), strict=True))
    weights.close()

"""Weights between two streams: never overwritten under a forward pass, never half there."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from seedflow.learner.cuda.weights import StagedWeights
from seedflow.learner.streams import Stream
from tests.learner.cuda.fake_gpu import FakeGpu

SIZE = 8


def make(gpu: FakeGpu) -> tuple[StagedWeights, Stream, Stream]:
    inference, _, training = (gpu.stream() for _ in range(3))
    return StagedWeights(SIZE, gpu.device, training, inference), training, inference


@given(steps=st.lists(st.sampled_from(["publish", "act"]), max_size=40), seed=st.integers(0, 2**32))
def test_a_pass_sees_one_version_and_knows_which(steps: list[str], seed: int) -> None:
    generator = random.Random(seed)
    gpu = FakeGpu(lambda queues: generator.randrange(4))
    weights, training, inference = make(gpu)
    network = weights.networks(nn.Linear(3, 2))
    trained = torch.zeros(SIZE)
    training.submit(lambda: trained.fill_(0.0))
    weights.publish(trained, 0)
    seen: list[tuple[int, list[float]]] = []
    newest = 0
    for step in steps:
        if step == "publish":
            newest += 1
            training.submit(lambda version=newest: trained.fill_(float(version)))
            weights.publish(trained, newest)
        else:
            acting, version = network.pin()
            assert version == newest

            def look(acting: nn.Module = acting, version: int = version) -> None:
                seen.append((version, [float(x) for p in acting.parameters() for x in p.flatten()]))

            for _ in range(2):  # a pass is many operations
                inference.submit(look)
    for stream in gpu.streams:
        stream.advance_to(None)
    assert all(values == [float(version)] * SIZE for version, values in seen)
    assert len(seen) == 2 * steps.count("act")


def test_if_training_did_not_wait_a_pass_would_see_later_weights() -> None:
    gpu = FakeGpu(deaf=frozenset([("training", "inference")]))
    weights, _, _ = make(gpu)
    network = weights.networks(nn.Linear(3, 2))
    weights.publish(torch.full((SIZE,), 1.0), 1)
    acting, version = network.pin()
    weights.publish(torch.full((SIZE,), 2.0), 2)
    for stream in (gpu.streams[2], gpu.streams[0]):
        stream.advance_to(None)
    assert version == 1
    assert all((parameter == 2.0).all() for parameter in acting.parameters())


def test_if_inference_did_not_wait_a_pass_would_see_earlier_weights() -> None:
    gpu = FakeGpu(deaf=frozenset([("inference", "training")]))
    weights, _, _ = make(gpu)
    network = weights.networks(nn.Linear(3, 2))
    weights.publish(torch.full((SIZE,), 1.0), 1)
    acting, version = network.pin()
    gpu.streams[0].advance_to(None)
    assert version == 1
    assert all((parameter == 0.0).all() for parameter in acting.parameters())


def test_parameters_keep_their_addresses() -> None:
    gpu = FakeGpu()
    weights, _, inference = make(gpu)
    network = weights.networks(nn.Linear(3, 2))
    addresses = set()
    for version in range(3):
        weights.publish(torch.full((SIZE,), float(version)), version)
        acting, _ = network.pin()
        with inference.scope():
            addresses.add(tuple(parameter.data_ptr() for parameter in acting.parameters()))
    assert len(addresses) == 1


def test_nothing_is_copied_while_there_is_nothing_new() -> None:
    gpu = FakeGpu()
    weights, _, _ = make(gpu)
    network = weights.networks(nn.Linear(3, 2))
    weights.publish(torch.zeros(SIZE), 0)
    for _ in range(5):
        network.pin()
    assert gpu.log.count(("inference", "waits for", "training")) == 1


def test_acting_before_anything_was_published_is_an_error() -> None:
    weights, _, _ = make(FakeGpu())
    with pytest.raises(RuntimeError, match="no weights were published"):
        weights.take(torch.zeros(SIZE))

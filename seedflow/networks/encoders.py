"""Encoders: from the leaves of an observation to one feature vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from seedflow.networks.images import CONVOLUTIONS, find_image
from seedflow.specs import ArraySpec

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


class MlpEncoder(nn.Module):
    """All leaves flattened and concatenated, then dense layers.

    Takes leaves ``[N, depth, *shape]`` of any dtype, gives ``[N, size]``.
    """

    def __init__(
        self, leaves: Sequence[ArraySpec], depth: int, hidden: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = depth * sum(math.prod(leaf.shape) for leaf in leaves)
        for width in hidden:
            layers += [_initialized(nn.Linear(size, width)), nn.Tanh() if activation == "tanh" else nn.ReLU()]
            size = width
        self.layers = nn.Sequential(*layers)
        self.size = size

    def forward(self, leaves: Sequence[Tensor]) -> Tensor:
        flat = [leaf.flatten(1).to(torch.float32) for leaf in leaves]
        return self.layers(flat[0] if len(flat) == 1 else torch.cat(flat, dim=1))  # type: ignore[no-any-return]


class ConvolutionalEncoder(nn.Module):
    """Convolutions over one image leaf, then one dense layer.

    `find_image` says which leaf is the image; other leaves are concatenated to the convolution's output.
    Pixels are scaled to [0, 1]; convolutions run channels-last.
    """

    def __init__(self, kind: str, leaves: Sequence[ArraySpec], depth: int, features: int) -> None:
        super().__init__()
        image = find_image(kind, leaves)
        self.image, self.last = image.place, image.last
        self.scale = 1 / 255 if leaves[self.image].dtype.name == "uint8" else 1.0
        layers: list[nn.Module] = []
        inputs = image.channels * depth
        for outputs, kernel, stride in CONVOLUTIONS[kind]:
            layers += [_initialized(nn.Conv2d(inputs, outputs, kernel, stride)), nn.ReLU()]
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        for layer in self.convolutions:
            if isinstance(layer, nn.Conv2d):
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        others = depth * sum(math.prod(leaf.shape) for i, leaf in enumerate(leaves) if i != self.image)
        self.dense = _initialized(nn.Linear(image.outputs + others, features))
        self.size = features

    def forward(self, leaves: Sequence[Tensor]) -> Tensor:
        image = leaves[self.image]  # [N, depth, H, W] or with a channel axis behind depth
        if image.ndim == 5:
            image = image.movedim(-1, 2) if self.last else image
            image = image.flatten(1, 2)
        # In two steps: one strided conversion from bytes would take three times as long.
        pixels = image.to(torch.float32).mul_(self.scale).contiguous(memory_format=torch.channels_last)
        parts = [self.convolutions(pixels).flatten(1)]
        parts += [leaf.flatten(1).to(torch.float32) for i, leaf in enumerate(leaves) if i != self.image]
        return torch.relu(self.dense(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)))


def _initialized(layer: _Layer) -> _Layer:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer

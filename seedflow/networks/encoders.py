"""Encoders: from the leaves of an observation to one feature vector."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from seedflow.networks.images import CONVOLUTIONS, find_image
from seedflow.specs import ArraySpec

_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


class FlatLeaf(nn.Module):
    """One leaf ``[N, depth, *shape]`` as float32 ``[N, size]``: numbers as they are, categories one-hot."""

    owner: Tensor
    category: Tensor

    def __init__(self, leaf: ArraySpec, depth: int) -> None:
        super().__init__()
        self.one_hot = bool(leaf.categories)
        self.size = depth * (sum(leaf.categories) if self.one_hot else math.prod(leaf.shape))
        # Of each column: which item of the leaf it looks at, and for which category.
        counts = torch.tensor(leaf.categories, dtype=torch.int64)
        owner = torch.arange(len(counts)).repeat_interleave(counts)
        begins = torch.tensor(leaf.lowest, dtype=torch.int64) - counts.cumsum(0) + counts
        self.register_buffer("owner", owner, persistent=False)
        self.register_buffer("category", torch.arange(len(owner)) + begins[owner], persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        if self.one_hot:
            items = leaf.reshape(*leaf.shape[:2], -1)
            leaf = items.index_select(2, self.owner) == self.category
        return leaf.flatten(1).to(torch.float32)


class MlpEncoder(nn.Module):
    """All leaves flattened and concatenated, then dense layers.

    Takes leaves ``[N, depth, *shape]`` of any dtype, gives ``[N, size]``.
    """

    def __init__(
        self, leaves: Sequence[ArraySpec], depth: int, hidden: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        flat = [FlatLeaf(leaf, depth) for leaf in leaves]
        self.leaves = nn.ModuleList(flat)
        size = sum(leaf.size for leaf in flat)
        layers = []
        for width in hidden:
            layers.append(_initialized(nn.Linear(size, width)))
            size = width
        self.layers: Iterable[nn.Linear] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.activation = torch.tanh if activation == "tanh" else torch.relu
        self.size = size

    def forward(self, leaves: Sequence[Tensor]) -> Tensor:
        flat = [flatten(leaf) for flatten, leaf in zip(self.leaves, leaves, strict=True)]
        x = flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
        for layer in self.layers:
            # As layer(x), without what the call of a module costs beside the work on a small batch.
            x = self.activation(nn.functional.linear(x, layer.weight, layer.bias))
        return x


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
        flat = [FlatLeaf(leaf, depth) for i, leaf in enumerate(leaves) if i != self.image]
        self.others = nn.ModuleList(flat)
        others = sum(leaf.size for leaf in flat)
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
        others = [leaf for i, leaf in enumerate(leaves) if i != self.image]
        parts += [flatten(leaf) for flatten, leaf in zip(self.others, others, strict=True)]
        return torch.relu(self.dense(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)))


def _initialized(layer: _Layer) -> _Layer:
    nn.init.orthogonal_(layer.weight, math.sqrt(2))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer

"""Which leaf of an observation is the image, and whether an encoder can take it; without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seedflow.config import NetworkConfig
from seedflow.errors import ConfigError
from seedflow.specs import ArraySpec, EnvSpec

CONVOLUTIONS = {
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "shallow": ((16, 8, 4), (32, 4, 2)),
    "small": ((16, 3, 1),),
}
"""Channels, kernel and stride of each layer: Mnih et al. 2015 (Nature 518); the smaller network of
Mnih et al. 2013 (arXiv 1312.5602) and of IMPALA's shallow agent, which costs a third; and that of MinAtar's
authors for images of 10 x 10 (Young & Tian 2019, arXiv 1903.03176)."""


@dataclass(frozen=True)
class ImageLeaf:
    """The image of an observation.

    Attributes
    ----------
    place
        Among the leaves.
    channels, height, width
        Of one frame.
    last
        Whether the channels come last.
    outputs
        Numbers that the convolutions make of it.
    """

    place: int
    channels: int
    height: int
    width: int
    last: bool
    outputs: int


def find_image(kind: str, leaves: Sequence[ArraySpec]) -> ImageLeaf:
    """The one leaf of rank 2 (``[H, W]``) or 3 (``[C, H, W]`` or ``[H, W, C]``, told apart by which end is
    small).

    Raises
    ------
    ConfigError
        If there is not exactly one, or it is too small for the convolutions of `kind`.
    """
    images = [i for i, leaf in enumerate(leaves) if len(leaf.shape) in (2, 3)]
    if len(images) != 1:
        shapes = {leaf.name: leaf.shape for leaf in leaves}
        raise ConfigError(
            f"network.encoder = {kind!r} needs exactly one image leaf, the observation has {shapes}; "
            "use network.encoder=mlp or select one image in a wrapper"
        )
    shape = leaves[images[0]].shape
    last = len(shape) == 3 and shape[-1] <= 4 < shape[0]
    height, width = shape[:2] if last or len(shape) == 2 else shape[1:]
    channels = 1 if len(shape) == 2 else shape[-1] if last else shape[0]
    out_height, out_width, maps = height, width, 0
    for maps, kernel, stride in CONVOLUTIONS[kind]:  # noqa: B007 - the last layer's
        out_height, out_width = (out_height - kernel) // stride + 1, (out_width - kernel) // stride + 1
    if min(out_height, out_width) < 1:
        raise ConfigError(
            f"network.encoder = {kind!r} cannot take an image of {height} x {width}: it needs at least "
            f"{least_side(kind)} x {least_side(kind)} pixels; use network.encoder=mlp or enlarge the image "
            "in a wrapper"
        )
    return ImageLeaf(images[0], channels, height, width, last, maps * out_height * out_width)


def least_side(kind: str) -> int:
    """Height and width of the smallest image that the convolutions of `kind` can take."""
    side = 1
    for _, kernel, stride in reversed(CONVOLUTIONS[kind]):
        side = (side - 1) * stride + kernel
    return side


def check_encoder(config: NetworkConfig, spec: EnvSpec) -> None:
    """Whether the encoder can take the environment's observations.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    if config.encoder != "mlp":
        find_image(config.encoder, spec.observation)

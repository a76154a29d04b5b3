"""Settings of the agent's network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from seedflow.config.section import Section


class FrameStackConfig(Section):
    """Newest frames stacked as part of the core state."""

    depth: PositiveInt = Field(1, description="frames seen at once; 1 stacks nothing")
    padding: Literal["repeat", "zero"] = Field(
        "repeat", description="what stands before an episode's first frame"
    )


class NetworkConfig(Section):
    """The agent's network: frame stack, encoder, optional inputs, core, heads."""

    encoder: Literal["mlp", "nature", "shallow", "small"] = Field(
        "mlp",
        description="shallow, nature: convolutions over an image, of Mnih et al. 2013 and 2015; small: one "
        "layer, for MinAtar",
    )
    hidden: tuple[PositiveInt, ...] = Field((64, 64), description="layer sizes of the mlp encoder")
    activation: Literal["relu", "tanh"] = Field("tanh", description="of the mlp encoder")
    features: PositiveInt = Field(512, description="output size of the convolutional encoders")
    frame_stack: FrameStackConfig = FrameStackConfig()
    core: Literal["none", "lstm"] = Field("none", description="recurrent core behind the encoder")
    core_size: PositiveInt = Field(64, description="hidden size of the recurrent core")
    head_size: PositiveInt = Field(512, description="hidden size of each of r2d2's two dueling heads")
    inputs: tuple[Literal["previous_action", "previous_reward"], ...] = Field(
        (), description="concatenated to the features before the core"
    )
    autocast: Literal["none", "bfloat16"] = Field(
        "none", description="bfloat16: matrix products and convolutions in it, acting and training alike"
    )
    compile: bool = Field(False, description="by torch.compile, when it first runs, which takes a while")

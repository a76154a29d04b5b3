"""The section `algo`, one class for each algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PositiveFloat, PositiveInt, Tag

from seedflow.config.section import Fraction, NonNegative, Section


class VTraceConfig(Section):
    """V-trace (IMPALA), Espeholt et al. 2018, arXiv 1802.01561."""

    name: Literal["vtrace"] = Field("vtrace", description="learns from each unroll once, as it comes")
    discount: Fraction = Field(0.99, description="of future rewards, per agent step")
    trace_decay: Fraction = Field(1.0, description="lambda")
    rho_bar: PositiveFloat = Field(1.0, description="clip of the importance ratio in the target")
    c_bar: PositiveFloat = Field(1.0, description="clip of the trace coefficient")
    pg_rho_bar: PositiveFloat = Field(1.0, description="clip of the policy gradient's ratio")
    value_cost: NonNegative = Field(0.5, description="weight of the value loss")
    entropy_cost: NonNegative = Field(
        0.01, description="weight of the entropy bonus; the initial one where target_entropy is set"
    )
    target_entropy: NonNegative | None = Field(
        None, description="tunes the entropy cost to hold this entropy (nats)"
    )
    entropy_cost_rate: NonNegative = Field(0.01, description="step size of that tuning, log space")
    reward_scale: PositiveFloat = Field(
        1.0, description="multiplies rewards in the loss, after clipping; keeps values near 1"
    )
    reward_clip: PositiveFloat | None = Field(None, description="clip rewards to [-x, x] in the loss")


class R2D2Config(Section):
    """R2D2 (recurrent replay distributed DQN), Kapturowski et al. 2019; its sequences: section `replay`."""

    name: Literal["r2d2"] = Field("r2d2", description="learns from a replay of sequences")
    discount: Fraction = Field(0.997, description="of future rewards, per agent step")
    n_step: PositiveInt = Field(5, description="rewards summed before the Q-value of the index reached")
    rescale_epsilon: NonNegative = Field(
        1e-3, description="of the rescaling of values, h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x"
    )
    priority_eta: Fraction = Field(
        0.9, description="a sequence's priority: eta times its largest TD error, the rest its mean"
    )
    target_period: PositiveInt = Field(2500, description="updates between two copies to the target network")
    exploration_base: Fraction = Field(
        0.4, description="environment i of N acts at random with probability base^(1 + power i / (N - 1))"
    )
    exploration_power: NonNegative = Field(7.0, description="see exploration_base")
    evaluation_epsilon: Fraction = Field(
        0.001, description="probability of a random action where nothing is explored"
    )


def _algorithm_of(values: Any) -> str:
    name = values.get("name", "vtrace") if isinstance(values, Mapping) else getattr(values, "name", "vtrace")
    return name if name in ("vtrace", "r2d2") else "vtrace"


AlgoConfig = Annotated[
    Annotated[VTraceConfig, Tag("vtrace")] | Annotated[R2D2Config, Tag("r2d2")],
    Discriminator(_algorithm_of),
]
"""The section `algo`: whose settings it has is said by its `name`."""

"""Settings of the replay."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from seedflow.config.section import Fraction, Section


class ReplayConfig(Section):
    """Prioritized sequence replay, compressed in memory; for algorithms that learn from it."""

    capacity: PositiveInt = Field(100_000, description="sequences held; the oldest go first")
    chunk: PositiveInt = Field(40, description="consecutive indices that are compressed together")
    burn_in: NonNegativeInt = Field(40, description="indices of a sequence that only warm the core state up")
    unroll: PositiveInt = Field(80, description="indices of a sequence that follow them")
    period: PositiveInt = Field(
        40, description="a sequence begins every so many indices; equal to unroll, none overlap in training"
    )
    samples_per_insert: PositiveFloat = Field(
        0.75, description="sequences sampled for each one inserted, past min_size"
    )
    tolerance: PositiveFloat = Field(
        512.0, description="sampled sequences by which either side may run ahead of that ratio"
    )
    min_size: PositiveInt = Field(5_000, description="sequences inserted before the first is sampled")
    priority_exponent: Fraction = Field(0.9, description="alpha; 0 samples uniformly")
    importance_exponent: Fraction = Field(0.6, description="beta; 0 corrects nothing")
    memory_gib: PositiveFloat | None = Field(
        None, description="hard limit of the sequences' memory; default: half of the machine's or cgroup's"
    )
    decode_threads: PositiveInt = Field(2, description="threads that decompress a batch")
    on_damage: Literal["error", "drop"] = Field(
        "error", description="when a checkpoint's chunk is damaged: refuse to load, or go on without it"
    )

    @model_validator(mode="after")
    def _chunks_fit(self) -> ReplayConfig:
        for name in ("burn_in", "unroll", "period"):
            if getattr(self, name) % self.chunk:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is not a multiple of chunk = {self.chunk}: sequences "
                    "begin and end with chunks; choose a chunk that divides burn_in, unroll and period"
                )
        if self.min_size > self.capacity:
            raise ValueError(
                f"min_size = {self.min_size} is larger than capacity = {self.capacity}: nothing would ever "
                "be sampled; lower min_size or raise capacity"
            )
        return self

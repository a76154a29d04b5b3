"""Memory that a learner takes for certain, known before it is started and without torch.

Networks, their optimizer, core states and what acting records come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from seedflow.config import Config
from seedflow.config.tree import SPARE_BLOCKS
from seedflow.replay.layout import ReplaySpec
from seedflow.replay.memory import expected_memory
from seedflow.rpc.slab import COUNTED_SCALARS, REPLY_SCALARS, REQUEST_SCALARS, BlockLayout
from seedflow.specs import EnvSpec


@dataclass(frozen=True)
class Footprint:
    """Bytes.

    Attributes
    ----------
    slab
        Shared with the actors of the same host.
    experience
        Unroll slots or chunk buffers, and batches. On a GPU where there is one.
    replay
        What a full one takes at least, or what `replay.memory_gib` allows it.
    """

    slab: int
    experience: int
    replay: int

    @classmethod
    def of(cls, config: Config, spec: EnvSpec) -> Footprint:
        layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
        slab = layout.block_bytes * (sum(config.actor_blocks) + SPARE_BLOCKS)
        return cls(slab, experience_bytes(config, spec), _replay_bytes(config, spec))


def experience_bytes(config: Config, spec: EnvSpec) -> int:
    """Memory of unroll slots or chunk buffers, and batches; core states and what is recorded left out."""
    fields = [
        f for f in (*spec.observation, *REQUEST_SCALARS, *REPLY_SCALARS) if f.name not in COUNTED_SCALARS
    ]
    index = sum(field.nbytes for field in fields)
    replay = config.replay
    if config.has_replay:
        batches = (config.rollout.prefetch + 1) * config.train.batch * (replay.burn_in + replay.unroll)
        return (config.chunk_buffers * replay.chunk + batches) * index
    unrolls = config.slots + (config.rollout.prefetch + 1) * config.train.batch
    return unrolls * (config.rollout.unroll + 1) * index


def _replay_bytes(config: Config, spec: EnvSpec) -> int:
    if not config.has_replay:
        return 0
    replay = config.replay
    if replay.memory_gib is not None:
        return int(replay.memory_gib * 2**30)
    fields = [
        f for f in (*spec.observation, *REQUEST_SCALARS, *REPLY_SCALARS) if f.name not in COUNTED_SCALARS
    ]
    stored = ReplaySpec(tuple(fields), (), replay.chunk, replay.burn_in, replay.unroll, replay.period)
    return expected_memory(stored, replay).least

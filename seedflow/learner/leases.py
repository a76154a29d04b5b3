"""How many actors a run has room for."""

from __future__ import annotations

from seedflow.config import Config
from seedflow.config.tree import SPARE_BLOCKS
from seedflow.rpc.leases import LeaseTable
from seedflow.specs import EnvSpec


def lease_table(config: Config, spec: EnvSpec) -> LeaseTable:
    """The lease table of a run: its training actors, one evaluation actor if it evaluates, and spares."""
    train, evaluation = config.actor_blocks
    return LeaseTable(
        train_blocks=train,
        eval_blocks=evaluation,
        spare_blocks=SPARE_BLOCKS,
        groups=config.actor.groups,
        envs=config.actor.envs_per_group,
        fingerprint=spec.fingerprint,
        lease_seconds=config.inference.lease_seconds,
    )


def slab_rows(config: Config) -> int:
    """Rows of all blocks of that table."""
    return (sum(config.actor_blocks) + SPARE_BLOCKS) * config.envs_per_actor

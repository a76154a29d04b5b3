"""How many actors a run has room for."""

from __future__ import annotations

from seedflow.config import Config
from seedflow.rpc.leases import LeaseTable
from seedflow.specs import EnvSpec

SPARE_BLOCKS = 2


def lease_table(config: Config, spec: EnvSpec) -> LeaseTable:
    """The lease table of a run: its training actors, one evaluation actor if it evaluates, and spares."""
    return LeaseTable(
        train_blocks=_train_blocks(config),
        eval_blocks=_eval_blocks(config),
        spare_blocks=SPARE_BLOCKS,
        groups=config.actor.groups,
        envs=config.actor.envs_per_group,
        fingerprint=spec.fingerprint,
        lease_seconds=config.inference.lease_seconds,
    )


def slab_rows(config: Config) -> int:
    """Rows of all blocks of that table."""
    return (_train_blocks(config) + _eval_blocks(config) + SPARE_BLOCKS) * config.envs_per_actor


def _train_blocks(config: Config) -> int:
    return config.max_envs // config.envs_per_actor


def _eval_blocks(config: Config) -> int:
    return 1 if config.eval.every else 0

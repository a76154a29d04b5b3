"""Making and stepping environments: groups that write rows, one module per kind of back end."""

from typing import TYPE_CHECKING, Any

from seedflow.envs.base import GroupEnv, Rows, allocate_rows
from seedflow.envs.make import EnvFn, make_group
from seedflow.envs.seeding import env_seed

if TYPE_CHECKING:
    from seedflow.envs.probe import probe_spec

__all__ = ["EnvFn", "GroupEnv", "Rows", "allocate_rows", "env_seed", "make_group", "probe_spec"]


def __getattr__(name: str) -> Any:
    # Not imported above: ``python -m seedflow.envs.probe`` would find itself imported already.
    if name == "probe_spec":
        from seedflow.envs.probe import probe_spec

        return probe_spec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

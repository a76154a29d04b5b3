"""Distributed deep RL with central batched inference, placed by Dask.

Actors step environments on CPU workers; one learner does all neural network work, both the actions of
every actor and the training. The names below are the whole Python API; each is imported when it is
first used, so that ``import seedflow`` loads neither torch nor dask nor numba.

Examples
--------
>>> import seedflow
>>> config = seedflow.load_config("cartpole_vtrace", ["train.total_agent_steps=200_000"])
>>> config.train.total_agent_steps
200000
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seedflow import errors
    from seedflow.config import Config, load_config
    from seedflow.evaluate import EvaluationResult, evaluate, load_policy
    from seedflow.train import train

__version__ = "0.1.0"

__all__ = [
    "Config",
    "EvaluationResult",
    "__version__",
    "errors",
    "evaluate",
    "load_config",
    "load_policy",
    "train",
]

# Public name -> (module, attribute); an empty attribute is the module itself.
_HOMES = {
    "Config": ("seedflow.config", "Config"),
    "EvaluationResult": ("seedflow.evaluate", "EvaluationResult"),
    "errors": ("seedflow.errors", ""),
    "evaluate": ("seedflow.evaluate", "evaluate"),
    "load_config": ("seedflow.config", "load_config"),
    "load_policy": ("seedflow.evaluate", "load_policy"),
    "train": ("seedflow.train", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'seedflow' has no attribute {name!r}")
    module_name, attribute = _HOMES[name]
    module = importlib.import_module(module_name)
    value = globals()[name] = getattr(module, attribute) if attribute else module
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Keeps `seedflow.train` and `seedflow.evaluate` the functions, whatever is imported.

    Both are also names of modules, and importing one of these would set the module as attribute here.
    ``from seedflow.train import ...`` is not affected.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        attribute = _HOMES.get(name, ("", ""))[1]
        super().__setattr__(
            name, getattr(value, attribute) if isinstance(value, ModuleType) and attribute else value
        )


sys.modules[__name__].__class__ = _Package

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
    value = getattr(module, attribute) if attribute else module
    # `seedflow.train` and `seedflow.evaluate` name functions as well as modules: importing the module
    # has just set the module as attribute, so the function is put in its place.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

"""Torch modules: encoders, cores, action distributions, and the networks made of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seedflow.networks.actor_critic import ActorCritic, NetworkOutput
    from seedflow.networks.cores import FrameStack, Lstm, PreviousAction
    from seedflow.networks.dueling import DuelingQ
    from seedflow.networks.trunk import NetworkInput, Trunk

_MODULES = {
    "ActorCritic": "actor_critic",
    "DuelingQ": "dueling",
    "FrameStack": "cores",
    "Lstm": "cores",
    "NetworkInput": "trunk",
    "NetworkOutput": "actor_critic",
    "PreviousAction": "cores",
    "Trunk": "trunk",
}

__all__ = [
    "ActorCritic",
    "DuelingQ",
    "FrameStack",
    "Lstm",
    "NetworkInput",
    "NetworkOutput",
    "PreviousAction",
    "Trunk",
]


def __getattr__(name: str) -> Any:
    # Without torch, a driver asks `seedflow.networks.images` whether an encoder can take the observations.
    if name in _MODULES:
        return getattr(importlib.import_module(f"seedflow.networks.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

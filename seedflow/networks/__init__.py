"""Torch modules: encoders, cores, action distributions and the actor-critic made of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seedflow.networks.actor_critic import ActorCritic, NetworkInput, NetworkOutput
    from seedflow.networks.cores import FrameStack, Lstm, PreviousAction

__all__ = ["ActorCritic", "FrameStack", "Lstm", "NetworkInput", "NetworkOutput", "PreviousAction"]


def __getattr__(name: str) -> Any:
    # Without torch, a driver asks `seedflow.networks.images` whether an encoder can take the observations.
    if name in ("FrameStack", "Lstm", "PreviousAction"):
        return getattr(importlib.import_module("seedflow.networks.cores"), name)
    if name in __all__:
        return getattr(importlib.import_module("seedflow.networks.actor_critic"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Torch modules: encoders, cores, action distributions and the actor-critic made of them."""

from seedflow.networks.actor_critic import ActorCritic, NetworkInput, NetworkOutput
from seedflow.networks.cores import FrameStack, Lstm, PreviousAction

__all__ = ["ActorCritic", "FrameStack", "Lstm", "NetworkInput", "NetworkOutput", "PreviousAction"]

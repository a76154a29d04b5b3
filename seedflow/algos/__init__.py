"""Algorithms. Each is a folder with the same files: acting, loss, learning; `base` says what they are."""

from seedflow.algos.base import (
    Acting,
    ActingInput,
    ActingOutput,
    Algorithm,
    Learning,
    ReplayLearning,
    SequenceUpdate,
    UnrollLearning,
)
from seedflow.algos.registry import make_algorithm

__all__ = [
    "Acting",
    "ActingInput",
    "ActingOutput",
    "Algorithm",
    "Learning",
    "ReplayLearning",
    "SequenceUpdate",
    "UnrollLearning",
    "make_algorithm",
]

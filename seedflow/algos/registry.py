"""From the name in a config to an algorithm."""

from seedflow.algos.base import Algorithm
from seedflow.algos.r2d2.learning import make_r2d2
from seedflow.algos.vtrace.learning import make_vtrace
from seedflow.config import Config
from seedflow.specs import EnvSpec

_MAKERS = {"vtrace": make_vtrace, "r2d2": make_r2d2}


def make_algorithm(config: Config, spec: EnvSpec) -> Algorithm:
    """The algorithm that `algo.name` asks for, for environments of this spec."""
    return _MAKERS[config.algo.name](config, spec)

"""What the learner's loops share: unroll slots, the rings that pass them on, weights and counters."""

from __future__ import annotations

from seedflow.algos import Algorithm
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.backend import Backend, make_backend
from seedflow.learner.progress import Progress
from seedflow.rollout import UnrollStorage
from seedflow.rollout.storage import VERSION
from seedflow.rpc.slab import COUNTED_SCALARS, REPLY_SCALARS, REQUEST_SCALARS
from seedflow.specs import ArraySpec, EnvSpec


class Shared:
    """Allocated once, in an arena; two processes that build it from the same config get the same memory.

    Parameters
    ----------
    config, spec
        The run's config and its environments' spec.
    algorithm
        What acts and learns.
    arena
        Where the memory comes from.
    backend
        Makes what depends on the device; by default that of the arena's.

    Attributes
    ----------
    backend
        The same.
    storage
        Memory of the unroll slots.
    unrolls, freed
        Rings of slots: finished ones from inference to prefetch, free ones back.
    weights
        From training to inference.
    progress
        The run's counters.
    """

    def __init__(
        self,
        config: Config,
        spec: EnvSpec,
        algorithm: Algorithm,
        arena: Arena,
        backend: Backend | None = None,
    ) -> None:
        self.backend = backend = make_backend(arena.device) if backend is None else backend
        self._arena = arena
        self.storage = UnrollStorage(
            recorded_fields(spec, algorithm.acting.record_specs),
            algorithm.state_specs,
            config.slots,
            config.rollout.unroll,
            arena.device,
            arena.zeros,
        )
        self.unrolls = backend.ring(arena, config.slots, "inference", "prefetch")
        self.freed = backend.ring(arena, config.slots, "prefetch", "inference")
        self.weights = backend.weights(arena, algorithm.learning.parameters.parameter.numel())
        self.progress = Progress(arena.counters(Progress.CELLS))

    def close(self) -> None:
        """Release rings and locks; the loops have ended before."""
        for ring in (self.unrolls, self.freed):
            ring.close()
        self.weights.close()
        self.backend.close()
        self._arena.close()


def recorded_fields(spec: EnvSpec, record: tuple[ArraySpec, ...]) -> tuple[ArraySpec, ...]:
    """The fields that an unroll keeps per index, in order."""
    inputs = [field for field in REQUEST_SCALARS if field.name not in COUNTED_SCALARS]
    return (*spec.observation, *inputs, *REPLY_SCALARS, VERSION, *record)

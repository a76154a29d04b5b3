"""What the learner's loops share: experience on its way to training, weights on their way back, counters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from seedflow.algos import Algorithm, ReplayLearning
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.backend import Backend, make_backend
from seedflow.learner.leases import slab_rows
from seedflow.learner.progress import Progress
from seedflow.replay.arrival import Arrivals
from seedflow.replay.layout import ReplaySpec
from seedflow.rollout import IndexRing, UnrollStorage
from seedflow.rollout.storage import VERSION
from seedflow.rpc.slab import COUNTED_SCALARS, REPLY_SCALARS, REQUEST_SCALARS
from seedflow.specs import ArraySpec, EnvSpec


@dataclass(frozen=True)
class Unrolls:
    """Unroll slots, for an algorithm that learns from each unroll once.

    Attributes
    ----------
    storage
        Memory of the slots.
    finished, freed
        Rings of slots: finished ones from inference to prefetch, free ones back.
    """

    storage: UnrollStorage
    finished: IndexRing
    freed: IndexRing

    def close(self) -> None:
        """Release the rings."""
        for ring in (self.finished, self.freed):
            ring.close()


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
    experience
        From inference to prefetch: unroll slots, or for an algorithm with a replay the chunk buffers.
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
        self.device = arena.device
        self.experience: Unrolls | Arrivals
        if isinstance(algorithm.learning, ReplayLearning):
            self.experience = _arrivals(config, spec, algorithm, algorithm.learning, arena)
        else:
            storage = UnrollStorage(
                recorded_fields(spec, algorithm.acting.record_specs),
                algorithm.state_specs,
                config.slots,
                config.rollout.unroll,
                arena.device,
                arena.zeros,
            )
            finished = backend.ring(arena, config.slots, "inference", "prefetch")
            freed = backend.ring(arena, config.slots, "prefetch", "inference")
            self.experience = Unrolls(storage, finished, freed)
        self.weights = backend.weights(arena, algorithm.learning.parameters.parameter.numel())
        self.progress = Progress(arena.counters(Progress.CELLS))

    def close(self) -> None:
        """Release rings and locks; the loops have ended before."""
        self.experience.close()
        self.weights.close()
        self.backend.close()
        self._arena.close()


def recorded_fields(spec: EnvSpec, record: tuple[ArraySpec, ...]) -> tuple[ArraySpec, ...]:
    """The fields that an unroll keeps per index, in order."""
    return (*_step_fields(spec), VERSION, *record)


def replay_spec(config: Config, spec: EnvSpec, algorithm: Algorithm) -> ReplaySpec:
    """What the run's replay keeps, and the geometry of its sequences."""
    assert isinstance(algorithm.learning, ReplayLearning)
    passing = {array.name for array in algorithm.learning.passing_specs}
    record = [array for array in algorithm.acting.record_specs if array.name not in passing]
    fields, state = (
        tuple(ArraySpec(a.name, a.shape, a.dtype) for a in arrays)  # bytes, whatever they mean
        for arrays in ((*_step_fields(spec), *record), algorithm.state_specs)
    )
    replay = config.replay
    return ReplaySpec(fields, state, replay.chunk, replay.burn_in, replay.unroll, replay.period)


def _step_fields(spec: EnvSpec) -> tuple[ArraySpec, ...]:
    inputs = [field for field in REQUEST_SCALARS if field.name not in COUNTED_SCALARS]
    return (*spec.observation, *inputs, *REPLY_SCALARS)


def _arrivals(
    config: Config, spec: EnvSpec, algorithm: Algorithm, learning: ReplayLearning, arena: Arena
) -> Arrivals:
    def allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        like = torch.from_numpy(np.zeros(0, dtype))
        return arena.zeros(shape, like.dtype, torch.device("cpu")).numpy()

    return Arrivals(
        replay_spec(config, spec, algorithm),
        slab_rows(config),
        config.chunk_buffers,
        learning.passing_specs,
        allocate,
        arena.ring,
    )

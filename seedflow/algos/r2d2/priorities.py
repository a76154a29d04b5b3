"""The priority with which a new sequence enters the replay, from the Q-values of acting time."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from seedflow.algos.r2d2.acting import Q_BEST, Q_TAKEN
from seedflow.config import R2D2Config
from seedflow.kernels import r2d2_loss
from seedflow.replay.layout import ReplaySpec

Array = NDArray[np.generic]

_NEEDED = ("reward", "terminated", "truncated", "first", Q_TAKEN.name, Q_BEST.name)


class ActingPriority:
    """The formula of the loss over the same indices, with the Q-values of acting time for both networks.

    Parameters
    ----------
    spec
        Geometry of the sequences.
    config
        The `algo` section.
    """

    def __init__(self, spec: ReplaySpec, config: R2D2Config) -> None:
        self._spec, self._config = spec, config
        self._lanes: dict[int, deque[dict[str, Array]]] = {}

    def chunk(self, lane: int, fields: Mapping[str, Array], completes: bool) -> float | None:
        """Take a lane's next chunk; return the priority of the sequence that it completes, if it does."""
        chunks = self._lanes.setdefault(lane, deque(maxlen=self._spec.chunks_per_sequence))
        chunks.append({name: fields[name].copy() for name in _NEEDED})
        return self._priority(chunks) if completes else None

    def end_lane(self, lane: int) -> None:
        """Forget a lane."""
        self._lanes.pop(lane, None)

    def _priority(self, chunks: deque[dict[str, Array]]) -> float:
        # The index by which a chunk overlaps the next one is taken from the last chunk alone.
        *earlier, last = chunks
        begin, config = self._spec.burn_in, self._config

        def joined(name: str) -> torch.Tensor:
            parts = [chunk[name][: self._spec.chunk] for chunk in earlier] + [last[name]]
            return torch.from_numpy(np.concatenate(parts)[begin:, None])

        q = torch.stack([joined(Q_TAKEN.name), joined(Q_BEST.name)], dim=-1)
        loss = r2d2_loss(
            q,
            q,
            torch.zeros(q.shape[:2], dtype=torch.int64),
            joined("reward"),
            joined("terminated"),
            joined("truncated"),
            joined("first"),
            torch.ones(1),
            burn_in=0,
            n_step=config.n_step,
            discount=config.discount,
            rescale_epsilon=config.rescale_epsilon,
            eta=config.priority_eta,
        )
        return loss.priorities.item()

"""How far a run is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Progress:
    """The counters of a run; saved in every checkpoint, so that a resumed run goes on counting.

    Attributes
    ----------
    agent_steps, env_frames
        Transitions of training environments, and the frames that they took (action repeat); written by
        the inference loop.
    updates, trained_steps
        Optimizer steps, and valid transitions that they trained on; written by the training loop. The
        number of updates is the version of the weights.
    next_evaluation
        Agent steps at which the next evaluation round opens.
    seconds_before
        Seconds that earlier processes of this run trained for.
    """

    agent_steps: int = 0
    env_frames: int = 0
    updates: int = 0
    trained_steps: int = 0
    next_evaluation: int = 0
    seconds_before: float = 0.0
    _started: float = field(default_factory=time.monotonic, repr=False)

    @property
    def seconds(self) -> float:
        """Seconds of training, over all processes of the run."""
        return self.seconds_before + time.monotonic() - self._started

    def to_json(self) -> dict[str, float]:
        """The counters as they are now."""
        return {
            "agent_steps": self.agent_steps,
            "env_frames": self.env_frames,
            "updates": self.updates,
            "trained_steps": self.trained_steps,
            "next_evaluation": self.next_evaluation,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, values: dict[str, float]) -> Progress:
        """Go on from saved counters."""
        return cls(
            agent_steps=int(values["agent_steps"]),
            env_frames=int(values["env_frames"]),
            updates=int(values["updates"]),
            trained_steps=int(values["trained_steps"]),
            next_evaluation=int(values["next_evaluation"]),
            seconds_before=float(values["seconds"]),
        )

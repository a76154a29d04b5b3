"""Optimizers over one flat parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seedflow.config import TrainConfig
from seedflow.errors import CheckpointError
from seedflow.networks.flat import FlatParameters


class FlatOptimizer:
    """Adam or RMSProp with global-norm clipping.

    RMSProp is torch's: epsilon is added outside the square root (TensorFlow's, which IMPALA used, adds it
    inside).

    Parameters
    ----------
    parameters
        What is optimized.
    config
        The `train` section.
    """

    def __init__(self, parameters: FlatParameters, config: TrainConfig) -> None:
        self._parameters = parameters
        self._clip_norm = config.clip_norm
        self._name = config.optimizer
        flat = parameters.parameter
        self._optimizer: torch.optim.Optimizer
        if config.optimizer == "adam":
            self._optimizer = torch.optim.Adam(
                [flat],
                lr=config.learning_rate,
                betas=config.adam_betas,
                eps=config.optimizer_epsilon,
                fused=True,
            )
            self._state_names = {"step", "exp_avg", "exp_avg_sq"}
        else:
            self._optimizer = torch.optim.RMSprop(
                [flat],
                lr=config.learning_rate,
                alpha=config.rmsprop_decay,
                eps=config.optimizer_epsilon,
                foreach=False,
            )
            self._state_names = {"step", "square_avg"}

    def step(self, learning_rate: float) -> Tensor:
        """Clip the gradient, step; returns the norm before clipping."""
        gradient = self._parameters.parameter.grad
        assert gradient is not None
        norm: Tensor = torch.linalg.vector_norm(gradient)
        if self._clip_norm is not None:
            gradient.mul_((self._clip_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by name; empty before the first step."""
        state = self._optimizer.state[self._parameters.parameter]
        return {f"optimizer/{name}": torch.as_tensor(value) for name, value in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave.

        Raises
        ------
        CheckpointError
            If it is another optimizer's.
        """
        flat = self._parameters.parameter
        state = {
            name.removeprefix("optimizer/"): value.to(flat.device, copy=True)
            for name, value in tensors.items()
            if name.startswith("optimizer/")
        }
        if not state:
            return
        if state.keys() != self._state_names:
            raise CheckpointError(
                f"the checkpoint's optimizer state holds {sorted(state)}, train.optimizer = "
                f"{self._name!r} needs {sorted(self._state_names)}; resume with the optimizer of the run"
            )
        self._optimizer.state[flat] = state

"""Optimizers over one flat parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seedflow.config import TrainConfig
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
        else:
            self._optimizer = torch.optim.RMSprop(
                [flat],
                lr=config.learning_rate,
                alpha=config.rmsprop_decay,
                eps=config.optimizer_epsilon,
                foreach=False,
            )

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
        """Take back what `tensors` gave."""
        state = {
            name.removeprefix("optimizer/"): value.clone()
            for name, value in tensors.items()
            if name.startswith("optimizer/")
        }
        if state:
            self._optimizer.state[self._parameters.parameter] = state

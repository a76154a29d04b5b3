"""Optimizers over one flat parameter."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seedflow.config import TrainConfig
from seedflow.errors import CheckpointError
from seedflow.kernels import adam_step, rmsprop_step
from seedflow.networks.flat import FlatParameters

STATES = {"adam": ("exp_avg", "exp_avg_sq"), "rmsprop": ("square_avg",)}
"""Running means of each optimizer, under torch's names, as checkpoints have them."""


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
        self._config = config
        self._steps = 0
        self._means = {
            name: torch.zeros_like(parameters.parameter.detach()) for name in STATES[config.optimizer]
        }

    def step(self, learning_rate: float) -> Tensor:
        """Clip the gradient, step; returns the norm before clipping."""
        parameter, config = self._parameters.parameter, self._config
        gradient = parameter.grad
        assert gradient is not None
        self._steps += 1
        if config.optimizer == "adam":
            return adam_step(
                parameter,
                gradient,
                self._means["exp_avg"],
                self._means["exp_avg_sq"],
                step=self._steps,
                learning_rate=learning_rate,
                betas=config.adam_betas,
                epsilon=config.optimizer_epsilon,
                clip_norm=config.clip_norm,
            )
        return rmsprop_step(
            parameter,
            gradient,
            self._means["square_avg"],
            learning_rate=learning_rate,
            decay=config.rmsprop_decay,
            epsilon=config.optimizer_epsilon,
            clip_norm=config.clip_norm,
        )

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by name; empty before the first step."""
        if self._steps == 0:
            return {}
        state = {"step": torch.tensor(float(self._steps)), **self._means}
        return {f"optimizer/{name}": value for name, value in state.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what `tensors` gave.

        Raises
        ------
        CheckpointError
            If it is another optimizer's.
        """
        state = {
            name.removeprefix("optimizer/"): value
            for name, value in tensors.items()
            if name.startswith("optimizer/")
        }
        if not state:
            return
        needed = {"step", *self._means}
        if state.keys() != needed:
            raise CheckpointError(
                f"the checkpoint's optimizer state holds {sorted(state)}, train.optimizer = "
                f"{self._config.optimizer!r} needs {sorted(needed)}; resume with the optimizer of the run"
            )
        self._steps = int(state["step"])
        for name, mean in self._means.items():
            mean.copy_(state[name])

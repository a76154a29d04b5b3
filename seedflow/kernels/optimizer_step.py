"""Steps of RMSProp and Adam over one flat buffer, with the gradient clipped by its global norm.

One pass for the norm, one for everything else. RMSProp is torch's: epsilon is added outside the square
root (TensorFlow's, which IMPALA used, adds it inside)::

    g = gradient * min(1, clip_norm / (norm + 1e-6))

    RMSProp:  s = decay s + (1 - decay) g^2;            x -= rate g / (sqrt(s) + epsilon)
    Adam:     m = beta_1 m + (1 - beta_1) g;  s likewise with beta_2 and g^2
              x -= rate / (1 - beta_1^step) m / (sqrt(s / (1 - beta_2^step)) + epsilon)
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from seedflow.errors import SpecError
from seedflow.kernels import checks
from seedflow.kernels.jit import cpu_kernel
from seedflow.kernels.registry import define, register, twin

define(
    "rmsprop_step",
    "Tensor(a!) parameter, Tensor gradient, Tensor(b!) square_average, float learning_rate, float decay, "
    "float epsilon, float clip_norm, Tensor(c!) norm",
)
define(
    "adam_step",
    "Tensor(a!) parameter, Tensor gradient, Tensor(b!) average, Tensor(c!) square_average, int step, "
    "float learning_rate, float beta_1, float beta_2, float epsilon, float clip_norm, Tensor(d!) norm",
)


def rmsprop_step(
    parameter: Tensor,
    gradient: Tensor,
    square_average: Tensor,
    *,
    learning_rate: float,
    decay: float,
    epsilon: float,
    clip_norm: float | None = None,
) -> Tensor:
    """Take a step of RMSProp, in place.

    Parameters
    ----------
    parameter
        What is optimized, float32 ``[n]``.
    gradient
        Its gradient; not changed.
    square_average
        Running mean of the squared gradient, zero before the first step.
    learning_rate, decay, epsilon
        See the module's docstring.
    clip_norm
        Largest norm of the gradient; None: any.

    Returns
    -------
    Tensor
        The gradient's norm before clipping, a scalar.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit.

    Examples
    --------
    >>> x = torch.tensor([1.0, 2.0])
    >>> norm = rmsprop_step(x, torch.tensor([3.0, -4.0]), torch.zeros(2), learning_rate=0.5, decay=0.75,
    ...                     epsilon=0.0)
    >>> norm.item(), x.tolist()
    (5.0, [0.0, 3.0])
    """
    device = _check(parameter, gradient, {"square_average": square_average}, clip_norm)
    norm = torch.empty((), dtype=torch.float32, device=device)
    clip = math.inf if clip_norm is None else clip_norm
    twin("rmsprop_step", device.type)(
        parameter.detach(), gradient, square_average, learning_rate, decay, epsilon, clip, norm
    )
    return norm


def adam_step(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    square_average: Tensor,
    *,
    step: int,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    clip_norm: float | None = None,
) -> Tensor:
    """Take a step of Adam (Kingma & Ba 2015, arXiv 1412.6980), in place.

    Parameters
    ----------
    parameter
        What is optimized, float32 ``[n]``.
    gradient
        Its gradient; not changed.
    average, square_average
        Running means of the gradient and its square, zero before the first step.
    step
        The number of this step, from 1 on.
    learning_rate, betas, epsilon
        See the module's docstring.
    clip_norm
        Largest norm of the gradient; None: any.

    Returns
    -------
    Tensor
        The gradient's norm before clipping, a scalar.

    Raises
    ------
    SpecError
        When shapes, dtypes or devices do not fit, or `step` is not positive.
    """
    states = {"average": average, "square_average": square_average}
    device = _check(parameter, gradient, states, clip_norm)
    if step < 1:
        raise SpecError(f"step is {step}: expected the number of this step, from 1 on")
    norm = torch.empty((), dtype=torch.float32, device=device)
    clip = math.inf if clip_norm is None else clip_norm
    twin("adam_step", device.type)(
        parameter.detach(),
        gradient,
        average,
        square_average,
        step,
        learning_rate,
        *betas,
        epsilon,
        clip,
        norm,
    )
    return norm


def _check(
    parameter: Tensor, gradient: Tensor, states: dict[str, Tensor], clip_norm: float | None
) -> torch.device:
    shape, device = (parameter.numel(),), parameter.device
    checks.check_array("parameter", parameter, shape, torch.float32, device, "[n]")
    for name, tensor in {"gradient": gradient, **states}.items():
        checks.check_array(name, tensor, shape, torch.float32, device, "[n] as parameter")
    if clip_norm is not None and not clip_norm > 0.0:
        raise SpecError(f"clip_norm is {clip_norm}: expected a positive number, or None to clip nothing")
    return device


@register("rmsprop_step", "torch")
def _rmsprop_torch(
    parameter: Tensor,
    gradient: Tensor,
    square_average: Tensor,
    learning_rate: float,
    decay: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    clipped = _clipped(gradient, clip_norm, norm)
    square_average.mul_(decay).addcmul_(clipped, clipped, value=1.0 - decay)
    parameter.addcdiv_(clipped, square_average.sqrt().add_(epsilon), value=-learning_rate)


@register("adam_step", "torch")
def _adam_torch(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    square_average: Tensor,
    step: int,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    clipped = _clipped(gradient, clip_norm, norm)
    average.lerp_(clipped, 1.0 - beta_1)
    square_average.mul_(beta_2).addcmul_(clipped, clipped, value=1.0 - beta_2)
    denominator = (square_average.sqrt() / math.sqrt(1.0 - beta_2**step)).add_(epsilon)
    parameter.addcdiv_(average, denominator, value=-learning_rate / (1.0 - beta_1**step))


def _clipped(gradient: Tensor, clip_norm: float, norm: Tensor) -> Tensor:
    norm.copy_(torch.linalg.vector_norm(gradient))
    return gradient if clip_norm == math.inf else gradient * (clip_norm / (norm + 1e-6)).clamp(max=1.0)


@register("rmsprop_step", "cpu")
def _rmsprop_cpu(
    parameter: Tensor,
    gradient: Tensor,
    square_average: Tensor,
    learning_rate: float,
    decay: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    scale = _scale(gradient, clip_norm, norm)
    scalars = np.array((scale, learning_rate, decay, 1.0 - decay, epsilon), np.float32)
    _rmsprop(parameter.numpy(), gradient.numpy(), square_average.numpy(), scalars)


@register("adam_step", "cpu")
def _adam_cpu(
    parameter: Tensor,
    gradient: Tensor,
    average: Tensor,
    square_average: Tensor,
    step: int,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    clip_norm: float,
    norm: Tensor,
) -> None:
    scale = _scale(gradient, clip_norm, norm)
    rate, root = learning_rate / (1.0 - beta_1**step), 1.0 / math.sqrt(1.0 - beta_2**step)
    scalars = np.array((scale, rate, beta_1, 1.0 - beta_1, beta_2, 1.0 - beta_2, root, epsilon), np.float32)
    _adam(parameter.numpy(), gradient.numpy(), average.numpy(), square_average.numpy(), scalars)


def _scale(gradient: Tensor, clip_norm: float, norm: Tensor) -> float:
    torch.linalg.vector_norm(gradient, out=norm)
    factor = clip_norm / (norm.item() + 1e-6)
    return 1.0 if factor > 1.0 else factor  # a NaN stays one


@cpu_kernel
def _rmsprop(
    parameter: np.ndarray, gradient: np.ndarray, square_average: np.ndarray, scalars: np.ndarray
) -> None:
    scale, rate, decay, rest, epsilon = scalars[0], scalars[1], scalars[2], scalars[3], scalars[4]
    for i in range(parameter.shape[0]):
        g = gradient[i] * scale
        square = square_average[i] * decay + g * g * rest
        square_average[i] = square
        parameter[i] -= rate * (g / (np.sqrt(square) + epsilon))


@cpu_kernel
def _adam(
    parameter: np.ndarray,
    gradient: np.ndarray,
    average: np.ndarray,
    square_average: np.ndarray,
    scalars: np.ndarray,
) -> None:
    scale, rate, beta_1, rest_1 = scalars[0], scalars[1], scalars[2], scalars[3]
    beta_2, rest_2, root, epsilon = scalars[4], scalars[5], scalars[6], scalars[7]
    for i in range(parameter.shape[0]):
        g = gradient[i] * scale
        mean = average[i] * beta_1 + g * rest_1
        square = square_average[i] * beta_2 + g * g * rest_2
        average[i] = mean
        square_average[i] = square
        parameter[i] -= rate * (mean / (np.sqrt(square) * root + epsilon))

"""All parameters of a module in one flat buffer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatParameters:
    """Parameters and gradients of a module as views of two flat float32 buffers.

    An optimizer then works on one tensor, the global norm is one norm, and publishing weights is one
    copy.

    Parameters
    ----------
    module
        Its parameters are rebound to views of the buffer; their values stay.
    values
        A buffer to use, ``float32[n]``, whose content replaces the values; by default a new one that
        takes the module's values.

    Attributes
    ----------
    parameter
        The buffer as one parameter, its ``grad`` the flat gradient.
    """

    def __init__(self, module: nn.Module, values: Tensor | None = None) -> None:
        owned = list(module.parameters())
        if values is None:
            values = torch.cat([p.detach().flatten() for p in owned])
        self.parameter = nn.Parameter(values)
        self.parameter.grad = torch.zeros_like(values)
        offset = 0
        for p in owned:
            end = offset + p.numel()
            gradient = self.parameter.grad[offset:end].view(p.shape)
            p.data = values[offset:end].view(p.shape)
            p.grad = gradient
            offset = end

    def zero_grad(self) -> None:
        """Zero the gradient in place, so that the views stay."""
        assert self.parameter.grad is not None
        self.parameter.grad.zero_()

"""Arrays of other libraries as tensors, and tensors as theirs, without a copy.

The kernels take torch tensors. A CuPy array, or whatever else speaks DLPack or has a
``__cuda_array_interface__``, becomes one in front of a kernel; both then share the memory, which lives
as long as either of them. Work goes on in order: what the other library has queued on its stream is done
before what torch queues next on its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seedflow.errors import SpecError


def as_tensor(array: Any) -> Tensor:
    """Return a tensor that shares an array's memory.

    Parameters
    ----------
    array
        A tensor, or an array of any library that speaks DLPack or has a ``__cuda_array_interface__``;
        of one that does both, DLPack is used.

    Raises
    ------
    SpecError
        When it is nothing of the kind.

    Examples
    --------
    >>> import numpy
    >>> array = numpy.zeros(3)
    >>> as_tensor(array)[1] = 5
    >>> array.tolist()
    [0.0, 5.0, 0.0]
    """
    if isinstance(array, Tensor):
        return array
    if hasattr(array, "__dlpack__"):
        return torch.from_dlpack(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise SpecError(
            f"array is {type(array).__name__}: expected something that has __dlpack__ or "
            "__cuda_array_interface__; make a torch tensor of it"
        )
    tensor = torch.as_tensor(array)
    stream = interface.get("stream")
    if stream is not None:
        # 1 and 2 stand for the default streams; torch knows the legacy one by the address 0.
        address = 0 if stream == 1 else stream
        source = torch.cuda.ExternalStream(address, device=tensor.device)  # type: ignore[no-untyped-call]
        torch.cuda.current_stream(tensor.device).wait_stream(source)
    return tensor


def as_cupy(tensor: Tensor) -> Any:
    """Return a ``cupy.ndarray`` that shares a CUDA tensor's memory; seedflow's extras bring CuPy."""
    import cupy

    return cupy.from_dlpack(tensor.detach())

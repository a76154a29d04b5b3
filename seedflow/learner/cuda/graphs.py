"""Batch sizes in buckets, and a CUDA graph for each bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from seedflow.learner.cuda.gpu import Gpu, Graph

WARM_UPS = 2  # of a bucket, before its work is captured: kernels compile, libraries take their workspace

Report = Callable[[str], None]


def bucket_of(batch: int, most: int) -> int:
    """The size that a batch is padded to: the next power of two, `most` at most.

    Examples
    --------
    >>> [bucket_of(batch, 100) for batch in (1, 2, 3, 64, 65, 100)]
    [1, 2, 4, 64, 100, 100]
    """
    if not 1 <= batch <= most:
        raise ValueError(f"a batch of {batch} environments: expected 1 to {most}, inference.max_batch")
    return min(1 << (batch - 1).bit_length(), most)


def buckets(most: int) -> list[int]:
    """All sizes that `bucket_of` gives.

    Examples
    --------
    >>> buckets(100)
    [1, 2, 4, 8, 16, 32, 64, 100]
    """
    return sorted({bucket_of(min(1 << power, most), most) for power in range(most.bit_length() + 1)})


class BucketGraphs:
    """Issues the work of a bucket: operation by operation at first, then as one graph.

    Where something cannot be captured, it is said once, and buckets without a graph go on as at first.

    Parameters
    ----------
    gpu
        What captures.
    work
        Issues the work for a bucket's size to the current stream.
    generators
        Sources of its random numbers.
    enabled
        Whether to capture at all.
    report
        Called with the reason where capturing failed.
    """

    def __init__(
        self,
        gpu: Gpu,
        work: Callable[[int], None],
        generators: Sequence[torch.Generator],
        enabled: bool,
        report: Report,
    ) -> None:
        self._gpu, self._work, self._generators = gpu, work, generators
        self._enabled, self._report = enabled, report
        self._warm_ups: dict[int, int] = {}
        self._graphs: dict[int, Graph] = {}

    def __call__(self, bucket: int) -> None:
        """Issue the work."""
        graph = self._graphs.get(bucket)
        if graph is None and self._enabled and self._is_warm(bucket):
            graph = self._capture(bucket)
        if graph is None:
            self._work(bucket)
        else:
            graph.replay()

    def _is_warm(self, bucket: int) -> bool:
        calls = self._warm_ups[bucket] = self._warm_ups.get(bucket, 0) + 1
        return calls > WARM_UPS

    def _capture(self, bucket: int) -> Graph | None:
        try:
            graph = self._graphs[bucket] = self._gpu.capture(partial(self._work, bucket), self._generators)
        except RuntimeError as error:
            self._enabled = False
            self._report(
                f"inference goes on without CUDA graphs for batches like those of {bucket}, which costs time "
                f"on the host: {_first_cause(error)}; inference.cuda_graphs=false asks for none"
            )
            return None
        return graph


def _first_cause(error: BaseException) -> str:
    """What went wrong first: the end of a capture that failed raises again."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).strip().partition("\n")[0] or type(error).__name__

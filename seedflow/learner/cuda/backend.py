"""The learner's parts for a GPU: a stream for each loop, and events where something passes between two."""

from __future__ import annotations

from typing import get_args

from seedflow.algos import Acting
from seedflow.config import Config
from seedflow.learner.arena import Arena
from seedflow.learner.backend import Report
from seedflow.learner.cuda.forward import BucketForward, StreamedForward
from seedflow.learner.cuda.gpu import Gpu
from seedflow.learner.cuda.rings import StreamRing
from seedflow.learner.cuda.rows import Rows, make_rows
from seedflow.learner.cuda.weights import StagedWeights
from seedflow.learner.forward import ActingNetworks, Forward
from seedflow.learner.recording import Recorder, UnrollRecorder
from seedflow.learner.streams import LoopName, Stream
from seedflow.learner.weights import Weights
from seedflow.rollout import IndexRing, StateTable
from seedflow.rpc.slab import Slab


class CudaBackend:
    """For learners on a GPU, see `seedflow.learner.backend.Backend`.

    Parameters
    ----------
    gpu
        The GPU.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.device = gpu.device
        self._rows: list[Rows] = []
        self._streams: dict[LoopName, Stream] = {loop: gpu.stream() for loop in get_args(LoopName)}

    def stream(self, loop: LoopName) -> Stream:
        """See `Backend.stream`."""
        return self._streams[loop]

    def ring(self, arena: Arena, capacity: int, source: LoopName, target: LoopName) -> IndexRing:
        """See `Backend.ring`; the loops of a GPU are of one process, and need no arena."""
        return StreamRing(capacity, self._streams[source], self._streams[target])

    def weights(self, arena: Arena, size: int) -> Weights:
        """See `Backend.weights`."""
        return StagedWeights(size, self.device, self._streams["training"], self._streams["inference"])

    def forward(
        self,
        slab: Slab,
        config: Config,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: Recorder,
        report: Report,
    ) -> Forward:
        """See `Backend.forward`."""
        most, stream = config.inference.max_batch, self._streams["inference"]
        if not isinstance(recorder, UnrollRecorder):
            if config.inference.cuda_graphs:
                report(
                    f"inference works without CUDA graphs: algo.name = {config.algo.name!r} keeps its "
                    "experience in the host's memory"
                )
            return StreamedForward(stream, slab, most, acting, networks, states, recorder, self.device)
        rows = make_rows(self._gpu, slab, most, report)
        self._rows.append(rows)
        return BucketForward(
            self._gpu,
            stream,
            rows,
            most,
            acting,
            networks,
            states,
            recorder,
            greedy=config.eval.every > 0 and config.eval.deterministic,
            graphs=config.inference.cuda_graphs,
            report=report,
        )

    def close(self) -> None:
        """See `Backend.close`."""
        while self._rows:
            self._rows.pop().close()

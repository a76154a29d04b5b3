"""An inference batch on a GPU: whole numbers in, one graph, actions out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from seedflow.algos import Acting, ActingInput
from seedflow.kernels import recurrent_scatter, unroll_append
from seedflow.learner.cuda.gpu import Gpu
from seedflow.learner.cuda.graphs import BucketGraphs, bucket_of, buckets
from seedflow.learner.cuda.rows import Rows
from seedflow.learner.forward import ActingNetworks, DirectForward, Forward, HostRows, ServedBatch
from seedflow.learner.recording import Recorder, UnrollRecorder
from seedflow.learner.streams import Stream
from seedflow.rollout import StateTable
from seedflow.rollout.slots import Completion, Placement
from seedflow.rollout.storage import VERSION
from seedflow.rpc.slab import Slab


class BucketForward(Forward):
    """Pads each batch to its bucket's size, so that all it does on the GPU has fixed shapes and addresses.

    What differs from batch to batch is in `BatchIndex` and in the rows, both in pinned memory that the GPU
    copies from. An environment that is padding, or is not recorded, is written to the state table's and the
    storage's last place, which nobody reads.

    Parameters
    ----------
    gpu, stream
        Where the work goes.
    rows
        The way of the slab's rows to the GPU.
    max_batch
        Environments at most.
    acting, networks
        The algorithm's acting half, and what it acts with: one network whose weights change in place.
    states, recorder
        State table, and what assigns unroll slots.
    greedy
        Whether some environments may have to act without exploring.
    graphs
        Whether to capture graphs.
    report
        Called with a line about something that a person should know.
    """

    def __init__(
        self,
        gpu: Gpu,
        stream: Stream,
        rows: Rows,
        max_batch: int,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: UnrollRecorder,
        greedy: bool,
        graphs: bool,
        report: Callable[[str], None],
    ) -> None:
        self._stream, self._rows, self._max_batch, self._greedy = stream, rows, max_batch, greedy
        self._acting, self._networks, self._states = acting, networks, states
        self._recorder, self._storage = recorder, recorder.storage
        self._leaves = rows.leaves
        self._index = {
            size: BatchIndex(gpu, size, states.rows, self._storage.slots) for size in buckets(max_batch)
        }
        self._beginning = torch.zeros(max_batch, dtype=torch.int64, device=gpu.device)
        self._action = gpu.host((max_batch,), torch.int64)
        self._actions = self._action.numpy()
        self._graphs = BucketGraphs(gpu, self._issue, [acting.generator], graphs, report)
        self._completion: Completion | None = None

    def run(self, batch: ServedBatch) -> HostRows:
        """See `Forward.run`; the GPU is still at work when it returns."""
        bucket = bucket_of(len(batch.rows), self._max_batch)
        host = self._rows.load(batch.places, bucket)
        placement, completion = self._recorder.plan(batch.trained_rows)
        self._network, version = self._networks.pin()
        self._index[bucket].fill(batch, placement, completion, version)
        self._stream.submit(partial(self._graphs, bucket))
        self._done = self._stream.record()
        self._completion = completion
        return host

    def store_actions(self, batch: ServedBatch) -> None:
        """See `Forward.store_actions`; waits for the GPU."""
        self._done.synchronize()
        self._rows.store_actions(batch.places, self._actions[: len(batch.rows)])

    def hand_over(self) -> None:
        """See `Forward.hand_over`."""
        assert self._completion is not None
        self._recorder.announce(self._completion)

    @torch.inference_mode()
    def _issue(self, bucket: int) -> None:
        index, storage = self._index[bucket], self._storage
        index.issue()
        staged = self._rows.issue(bucket)
        state = self._states.gather(index.row, staged["first"])
        observation = tuple(staged[name] for name in self._leaves)
        greedy = index.greedy.to(torch.bool) if self._greedy else None
        inputs = ActingInput(observation, staged["reward"], staged["first"], greedy, index.env_id)
        output = self._acting.act(self._network, inputs, state)
        self._states.scatter(index.row, output.state)

        written = {**staged, "action": output.action, VERSION.name: index.version, **output.record}
        fields, values = [storage.fields[name] for name in written], list(written.values())
        unroll_append(fields, index.slot, index.time, values)
        unroll_append(fields, index.onward, self._beginning[:bucket], values)
        if storage.state:
            recurrent_scatter(storage.state, index.state_slot, state)
        self._action[:bucket].copy_(output.action, non_blocking=True)


class StreamedForward(DirectForward):
    """Does all at once on a stream, for experience that is written down on the host.

    Parameters
    ----------
    stream
        Where the work goes.
    rest
        As of `DirectForward`.
    """

    def __init__(
        self,
        stream: Stream,
        slab: Slab,
        max_batch: int,
        acting: Acting,
        networks: ActingNetworks,
        states: StateTable,
        recorder: Recorder,
        device: torch.device,
    ) -> None:
        super().__init__(slab, max_batch, acting, networks, states, recorder, device)
        self._stream = stream

    def run(self, batch: ServedBatch) -> HostRows:
        """See `Forward.run`."""
        with self._stream.scope():
            return super().run(batch)

    def store_actions(self, batch: ServedBatch) -> None:
        """See `Forward.store_actions`."""
        with self._stream.scope():
            super().store_actions(batch)

    def hand_over(self) -> None:
        """See `Forward.hand_over`."""
        with self._stream.scope():
            super().hand_over()


class BatchIndex:
    """Whole numbers that tell a bucket's environments apart, ``int64[bucket]`` each, in one copy to the GPU.

    Parameters
    ----------
    gpu
        Where they go.
    bucket
        Environments.
    no_row, no_slot
        The places in state table and storage that nobody reads.

    Attributes
    ----------
    row
        In the state table.
    slot, time
        Where the index goes.
    onward
        Slot whose first index it is as well, where it is the last one of its own.
    state_slot
        Slot that begins with this index and so keeps its core state.
    version
        Of the weights that act.
    greedy
        1 where an environment acts without exploring.
    env_id
        Of a training environment, -1 of any other.
    """

    def __init__(self, gpu: Gpu, bucket: int, no_row: int, no_slot: int) -> None:
        self._no_row, self._no_slot = no_row, no_slot
        self._host = gpu.host((8, bucket), torch.int64)
        self._device = torch.zeros(8, bucket, dtype=torch.int64, device=gpu.device)
        self._numbers = self._host.numpy()
        rows: tuple[Tensor, ...] = self._device.unbind()
        self.row, self.slot, self.time, self.onward, self.state_slot = rows[:5]
        self.version, self.greedy, self.env_id = rows[5:]

    def fill(self, batch: ServedBatch, placement: Placement, completion: Completion, version: int) -> None:
        """Write a batch's numbers; the GPU must be done with those before."""
        row, slot, time, onward, state_slot, versions, greedy, env_id = self._numbers
        size, trained = len(batch.rows), batch.trained
        row[:size], row[size:] = batch.rows, self._no_row
        env_id[:size], env_id[size:] = batch.env_ids, -1
        slot[:] = onward[:] = state_slot[:] = self._no_slot
        slot[trained], time[trained] = placement.slots, placement.times
        begins, ends = trained[placement.begins], trained[completion.rows]
        state_slot[begins] = placement.slots[placement.begins]
        onward[ends] = state_slot[ends] = completion.following
        versions[:] = version
        greedy[:] = 0
        if batch.greedy is not None:
            greedy[:size] = batch.greedy

    def issue(self) -> None:
        """Issue the copy."""
        self._device.copy_(self._host, non_blocking=True)

"""The inference loop: central batched inference for every environment of the run.

It alone changes the state table, the experience being recorded and the leases. What a batch does with arrays
is a `seedflow.learner.forward.Forward`. One pass of `step`:

1. take in what the transport reports: leases that open or close, groups that have rung;
2. take the groups of the next batch, as many as fit and have room to be recorded;
3. copy their rows out of the slab, fetch their core states, write the input half of their unrolls;
4. run the network, sample actions, store the states, write the output half of the unrolls;
5. write the actions into the slab, ring the owners, hand finished unrolls to the prefetch loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from seedflow.config import Config
from seedflow.learner.batcher import Batcher, PendingGroup
from seedflow.learner.episodes import EpisodeStatistics
from seedflow.learner.evaluation import EvaluationRounds
from seedflow.learner.forward import Forward, HostRows, ServedBatch
from seedflow.learner.progress import Progress
from seedflow.learner.recording import Recorder
from seedflow.learner.room import Room
from seedflow.metrics import Metrics
from seedflow.nested import Arrays, nest, part
from seedflow.rpc.leases import Lease
from seedflow.rpc.transport import FaultReported, GroupRang, LearnerTransport, LeaseClosed, LeaseOpened

log = logging.getLogger(__name__)

FAULT_METRICS = {"raised": "actor/faults", "hung": "actor/hangs", "crashed": "actor/crashes"}
MASKED = "env/masked"


class InferenceLoop:
    """Serves whatever has rung; never waits for a batch to be full.

    Parameters
    ----------
    transport
        Where groups ring.
    forward
        What a batch does with arrays.
    recorder
        What writes down what the environments do.
    progress, metrics, config
        Counters, where measurements go, and the run's config.
    report
        Called with a line about something that a person should know.
    silent
        Called with the lease of an actor of which nothing was heard for too long.
    """

    def __init__(
        self,
        transport: LearnerTransport,
        forward: Forward,
        recorder: Recorder,
        progress: Progress,
        metrics: Metrics,
        config: Config,
        report: Callable[[str], None],
        silent: Callable[[Lease], None],
    ) -> None:
        self._transport, self._forward, self._recorder = transport, forward, recorder
        self._progress, self._metrics, self._report = progress, metrics, report
        self._silent = silent
        for name in (*FAULT_METRICS.values(), MASKED):
            metrics.add(name, 0)
        settings = config.inference
        self._batcher = Batcher(settings.max_batch, settings.min_batch, settings.deadline_ms / 1000)
        slab = transport.slab
        self._group_rows, self._block_rows = slab.layout.envs, slab.layout.rows
        rows = slab.blocks * self._block_rows
        self._room = Room(recorder)
        self._batch_rows = np.arange(settings.max_batch)
        self._episodes = EpisodeStatistics(rows)
        self._evaluation = EvaluationRounds(config.eval.every, config.eval.episodes, rows)
        self._greedy_evaluation = config.eval.deterministic
        self._held: list[PendingGroup] = []  # evaluation groups between two rounds
        self._evaluates = config.eval.every > 0
        self._leases: dict[int, Lease] = {}
        self._rows_of: dict[tuple[int, int], NDArray[np.int64]] = {}  # by lease id and group
        self._env_ids = np.full(rows, -1, np.int64)
        self._starved_since: float | None = None
        metrics.add("inference/wait_slots_seconds", 0.0)

    def step(self, timeout: float) -> bool:
        """Serve one batch, waiting at most `timeout` seconds for events; returns whether it did."""
        began = time.monotonic()
        due = self._batcher.due_in(began)
        if due is not None and self._starved_since is None:
            timeout = min(timeout, due)
        events = self._transport.poll(timeout)
        if due is None:
            self._metrics.add("inference/idle_seconds", time.monotonic() - began)
        for event in events:
            match event:
                case GroupRang(lease, group):
                    self._rang(lease, group)
                case LeaseOpened(lease):
                    self._opened(lease)
                case LeaseClosed(lease, reason, ending):
                    self._closed(lease, reason)
                    if ending == "silent":
                        self._silent(lease)
                case FaultReported(lease, text, kind):
                    self._metrics.add(FAULT_METRICS[kind])
                    self._report(f"{lease.name}: {text}")
        self._room.look()
        if self._evaluates:
            self._open_evaluation()
        now = time.monotonic()
        groups = self._batcher.take(now, self._fits)
        self._note_starvation(now, starved=not groups and self._batcher.due_in(now) == 0.0)
        if groups:
            leases = {p.lease.id for p in groups}
            self._transport.hold(leases)
            self._serve(groups)
            self._transport.release(leases)
        return bool(groups)

    def state(self) -> Arrays:
        """Between two steps: what the loop owns, see `seedflow.nested`."""
        return nest(
            recorder=self._recorder.state(),
            episodes=self._episodes.state(),
            evaluation=self._evaluation.state(),
            groups={"pending": named_groups(self._batcher), "held": named_groups(self._held)},
        )

    def go_on_from(self, arrays: Arrays) -> None:
        """Take back what `state` gave; every group of every actor has rung, and nothing was served."""
        rung: dict[tuple[int, ...], PendingGroup] = {}
        for event in self._transport.poll(0.0):
            match event:
                case LeaseOpened(lease):
                    self._opened(lease)
                case GroupRang(lease, group):
                    pending = PendingGroup(lease, group, time.monotonic())
                    rung[tuple(named_groups([pending])[0].tolist())] = pending
        for name, owner in (
            ("recorder", self._recorder),
            ("episodes", self._episodes),
            ("evaluation", self._evaluation),
        ):
            owner.go_on_from(part(arrays, name))
        for place in arrays["groups/pending"].tolist():
            pending = rung[tuple(place)]
            self._batcher.add(pending.lease, pending.group, pending.rang_at)
        self._held = [rung[tuple(place)] for place in arrays["groups/held"].tolist()]

    def _rang(self, lease: Lease, group: int) -> None:
        if lease.id not in self._leases:
            return  # rang before it was dropped
        pending = PendingGroup(lease, group, time.monotonic())
        if lease.role == "eval" and not self._evaluation.open:
            self._held.append(pending)
        else:
            self._batcher.add(lease, group, pending.rang_at)

    def _opened(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        for group in range(lease.groups):
            start = lease.block * self._block_rows + group * self._group_rows
            rows = self._rows_of[lease.id, group] = np.arange(start, start + lease.envs)
            group_ids = lease.env_ids[group * lease.envs : (group + 1) * lease.envs]
            self._env_ids[rows] = group_ids if lease.role == "train" else -1
        ids = lease.env_ids
        log.info("lease %d of %s: environments %d to %d", lease.id, lease.name, ids.start, ids.stop - 1)
        self._report(f"{lease.name} (generation {lease.generation}) joined")

    def _closed(self, lease: Lease, reason: str) -> None:
        if self._leases.pop(lease.id, None) is None:
            return
        self._batcher.drop(lease)
        self._held = [p for p in self._held if p.lease.id != lease.id]
        rows = np.concatenate([self._rows_of.pop((lease.id, group)) for group in range(lease.groups)])
        self._recorder.drop(rows)
        self._episodes.drop(rows)
        self._evaluation.forget(rows)
        log.info("lease %d is over", lease.id)
        self._report(f"{lease.name} (generation {lease.generation}) left: {reason}")

    def _open_evaluation(self) -> None:
        leases = [lease for lease in self._leases.values() if lease.role == "eval"]
        groups = [self._rows_of[lease.id, group] for lease in leases for group in range(lease.groups)]
        rows = np.concatenate(groups) if groups else np.zeros(0, np.int64)
        progress = self._progress
        progress.next_evaluation = self._evaluation.open_if_due(
            progress.agent_steps, progress.next_evaluation, rows
        )
        if self._evaluation.open and self._held:
            for pending in self._held:
                self._batcher.add(pending.lease, pending.group, time.monotonic())
            self._held = []

    def _fits(self, pending: PendingGroup) -> bool:
        return pending.lease.role == "eval" or self._room.take(self._rows_of[pending.lease.id, pending.group])

    def _note_starvation(self, now: float, starved: bool) -> None:
        if self._starved_since is not None:
            self._metrics.add("inference/wait_slots_seconds", now - self._starved_since)
        self._starved_since = now if starved else None

    def _serve(self, groups: list[PendingGroup]) -> None:
        places = [(p.lease.block, p.group, p.lease.envs) for p in groups]
        rows = np.concatenate([self._rows_of[p.lease.id, p.group] for p in groups])
        evaluating = self._evaluating(groups)
        trained, trained_rows = self._batch_rows[: len(rows)], rows
        if evaluating is not None:
            trained = np.flatnonzero(~evaluating)
            trained_rows = rows[trained]
        greedy = evaluating if self._greedy_evaluation else None
        batch = ServedBatch(places, rows, trained, trained_rows, greedy, self._env_ids[rows])
        host = self._forward.run(batch)
        self._forward.store_actions(batch)
        self._reply(groups)
        self._forward.hand_over()
        self._count(rows, evaluating, host)

    def _evaluating(self, groups: list[PendingGroup]) -> NDArray[np.bool_] | None:
        """Which rows of a batch are evaluation environments; None if it has none."""
        if not self._evaluates or all(p.lease.role == "train" for p in groups):
            return None
        return np.repeat([p.lease.role == "eval" for p in groups], [p.lease.envs for p in groups])

    def _reply(self, groups: list[PendingGroup]) -> None:
        now = time.monotonic()
        for pending in groups:
            self._transport.reply(pending.lease.id, pending.group)
            self._metrics.observe("inference/latency_ms", 1000 * (now - pending.rang_at))

    def _count(
        self,
        rows: NDArray[np.int64],
        evaluating: NDArray[np.bool_] | None,
        host: HostRows,
    ) -> None:
        self._metrics.observe("inference/batch_size", float(len(rows)))
        first, reward, frames = host["first"], host["reward"], host["frames"]
        if evaluating is not None:
            self._evaluation.record(rows[evaluating], first[evaluating], reward[evaluating])
            self._report_evaluation()
            training = ~evaluating
            rows, first = rows[training], first[training]
            reward, frames = reward[training], frames[training]
        steps, simulated = self._episodes.steps, self._episodes.frames
        returns, lengths = self._episodes.update(rows, reward, first, frames)
        self._progress.agent_steps += self._episodes.steps - steps
        self._progress.env_frames += self._episodes.frames - simulated
        if masked := np.count_nonzero(host["masked"]):
            self._metrics.add(MASKED, int(masked))
        self._metrics.add("episode/count", len(returns))
        if len(returns):
            self._metrics.observe("episode/return", returns)
            self._metrics.observe("episode/length", lengths)

    def _report_evaluation(self) -> None:
        episodes = self._evaluation.result_if_complete()
        if not episodes:
            return
        mean = float(np.mean([episode.total for episode in episodes]))
        self._metrics.observe("eval/return", mean)
        self._metrics.observe("eval/length", float(np.mean([episode.length for episode in episodes])))
        self._report(f"evaluation: mean return {mean:.2f} over {len(episodes)} episodes")


def named_groups(groups: Iterable[PendingGroup]) -> NDArray[np.int64]:
    """Groups as rows of whether their actor evaluates, its index, and the group's."""
    rows = [(p.lease.role == "eval", p.lease.index, p.group) for p in groups]
    return np.array(rows, np.int64).reshape(-1, 3)

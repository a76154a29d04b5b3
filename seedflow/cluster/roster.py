"""Which roles a run has, which of them live, and what to do about it: a state machine without I/O.

`Roster` is told what happens (workers, notes of supervisors, the wish to stop) and the time, and says
which tasks to submit and which to cancel. `Run` does the talking.

A role is in one of the states of `RoleState`. Every start has a generation of its own, and whatever is
heard of another generation than the latest is ignored: an older copy that lives on somewhere, cut off, is
the lease table's to refuse, where it is an actor, and fenced off from the run's directory, where it is the
learner.

A lost learner leads the run back to the phase ``placing``. Its actors live on meanwhile and look for it; once
it is up again, their supervisors are told where.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from seedflow.actor.start import Obituary
from seedflow.cluster.launch import Note, RoleId, RoleResult
from seedflow.cluster.placement import Placement, WorkerInfo, free_places, plan
from seedflow.cluster.replacement import place_again
from seedflow.cluster.report import Failure, describe, describe_late, error_of, obituary
from seedflow.cluster.restarts import RestartPolicy, exception_text, speaks_of_others
from seedflow.cluster.slot import Announce, Cancel, Command, Found, Slot, Submit
from seedflow.cluster.status import Phase, RoleStatus
from seedflow.config import Config
from seedflow.errors import PlacementError, SeedflowError
from seedflow.roles import EXIT_DONE, EXIT_HOPELESS, FINISHED, STOPPED

STOP_MARGIN = 5.0
"""Seconds on top of a role's grace until its end must be confirmed."""
UNSTARTED_SECONDS = 1.5
"""A cancelled task that has not begun by then never will."""
CROWDING_SECONDS = 3.0
"""So long a lost learner waits for a worker without actors, such as one that its nanny starts again."""
GATHERING_SECONDS = 3.0
"""So long a run waits for company of a single worker: a cluster that has just been started grows."""

__all__ = ["Announce", "Cancel", "Found", "Roster", "Submit"]


class Roster:
    """The roles of one run.

    Attributes
    ----------
    phase
        See `Phase`.
    endpoint
        Where actors find the learner, once it is up.
    attempt
        The learner's number for its own start, which it tells with the endpoint.
    restarts, learner_restarts
        Actors started again, and starts of the learner after the first.
    notices
        Sentences about what happened, for people; whoever reads them clears the list.
    """

    def __init__(self, config: Config, now: float) -> None:
        self.config = config
        self.phase: Phase = "placing"
        self.endpoint: Mapping[str, Any] | None = None
        self.attempt = 0
        self.restarts = self.learner_restarts = 0
        self.failure: Failure | None = None
        self.notices: list[str] = []
        self._policy = RestartPolicy(config.actor.max_restarts, config.actor.restart_window_seconds)
        again = config.learner
        self._learner_policy = RestartPolicy(again.max_restarts, again.restart_window_seconds, "learner")
        self._workers: tuple[WorkerInfo, ...] = ()
        self._placement: Placement | None = None
        self._deadline = now + config.cluster.worker_seconds
        self._waiting = False
        self._alone_since = now
        self._commands: list[Command] = []
        self._learner = Slot(RoleId("learner"), config.cluster.stop_seconds)
        actors = [RoleId("actor", index) for index in range(config.actor.count)]
        if config.eval.every:
            actors.append(RoleId("eval"))
        self._actors = [Slot(role, config.actor.stop_seconds) for role in actors]
        self._slots = {slot.role: slot for slot in (self._learner, *self._actors)}

    def adopt(self, found: Iterable[Found], generations: Mapping[str, int], now: float) -> None:
        """Go on with a run that another driver has begun; the workers have been seen before.

        Parameters
        ----------
        found
            The starts of roles that live. Of several of one role, the latest counts.
        generations
            The latest that were given to each role, as text; what was not found of them has ended.
        """
        for start in sorted(found, key=lambda start: start.generation):
            slot = self._slots.get(start.role)
            if slot is None:
                self._commands.append(Cancel(start.role, start.generation))
                continue
            if slot.live:
                self._commands.append(Cancel(slot.role, slot.generation))
            slot.adopt(start)
            if slot is self._learner and start.endpoint is not None:
                self._learner_is_at(start.endpoint)
        for slot in self._slots.values():
            latest = generations.get(str(slot.role))
            if latest is not None and not (slot.live and slot.generation >= latest):
                self._commands.append(Cancel(slot.role, latest))
                slot.generation, slot.state = latest + 1, "waiting"
        self.learner_restarts = self._learner.generation
        place = self._learner.place
        if self._learner.live and place is not None:
            beside = any(slot.live and slot.worker == place.worker for slot in self._actors)
            self._placement = Placement(place, (), shared=beside or len(self._workers) == 1)
            self.phase = "starting" if self.endpoint is None else "running"
            self._deadline = now + self.config.cluster.learner_seconds if self.endpoint is None else math.inf
        self._announce(slot for slot in self._actors)

    def roles(self) -> tuple[RoleStatus, ...]:
        """All roles, the learner first."""
        return tuple(slot.status() for slot in self._slots.values())

    def error(self) -> SeedflowError | None:
        """Why the run failed, with all that is known by now; None if it did not."""
        if self.failure is None:
            return None
        slot = self._slots.get(self.failure.role) if self.failure.role else None
        return error_of(self.failure, slot.result if slot else None, slot.log_path if slot else None)

    @property
    def waiting(self) -> bool:
        """Whether a role waits for a place, other than a lost learner."""
        return self._placement is None or any(slot.state == "waiting" for slot in self._actors)

    def plan(self) -> tuple[Placement, tuple[WorkerInfo, ...]]:
        """Where the roles begin, and the workers of which that was made. The learner was placed before."""
        assert self._placement is not None
        return self._placement, self._workers

    def refuse(self, command: Submit, failure: Failure, now: float) -> None:
        """The learner is not started after all, and the run ends."""
        self._slots[command.role].state = "ended"
        self.stop(now, failure)
        self._deadline = now  # nothing else will be heard

    def next_time(self, now: float) -> float | None:
        """When `advance` is due even if nothing is heard."""
        times = [self._deadline]
        times += [slot.end_by for slot in self._slots.values() if slot.state == "stopping"]
        times += [
            slot.not_before
            for slot in self._slots.values()
            if slot.state == "waiting" and slot.not_before > now
        ]
        if self.phase == "placing" and self._placement is not None:
            times += [at for at in (self._learner.not_before + CROWDING_SECONDS,) if at > now]
        if self._placement is None and self._gathers(now):
            times.append(self._alone_since + GATHERING_SECONDS)
        earliest = min(times)
        return None if math.isinf(earliest) else earliest

    def see_workers(self, workers: Iterable[WorkerInfo], now: float) -> None:
        """All workers that the cluster has now."""
        self._workers = tuple(workers)
        if not self._alone():
            self._alone_since = now
        present = {worker.address for worker in self._workers}
        for slot in self._slots.values():
            if slot.live and slot.worker not in present:
                self.ended(slot.role, slot.generation, RoleResult("lost", host=slot.host or ""), now)
        self._announce(slot for slot in self._actors if slot.state == "starting")

    def worker_left(self, address: str, now: float) -> None:
        """A worker has left in order: it was retired, or its lifetime is over, no fault of its roles."""
        for slot in self._slots.values():
            if slot.live and slot.worker == address:
                self.ended(slot.role, slot.generation, RoleResult("left", host=slot.host or ""), now)

    def heard(self, note: Note, now: float) -> None:
        """What a supervisor says."""
        slot = self._slots[note.role]
        if note.generation != slot.generation or not slot.live:
            return
        if slot.attempt is None:
            slot.attempt = note.attempt
        elif slot.attempt != note.attempt:
            # Dask has run the task again, without asking: this start was given up already.
            self.ended(note.role, note.generation, RoleResult("lost", host=slot.host or ""), now)
            return
        if note.kind == "started":
            slot.host, slot.pid = str(note.content["host"]), int(note.content["pid"])
            slot.log_path = str(note.content["log_path"])
            if slot.state == "stopping":
                slot.end_by = now + slot.grace + STOP_MARGIN
            else:
                slot.state = "starting"
                if slot.told != self._learner.generation:
                    self._announce([slot])
        elif note.kind == "ended":
            self.ended(note.role, note.generation, RoleResult(**note.content), now)
        else:
            self._said(slot, note.content, now)

    def ended(self, role: RoleId, generation: int, result: RoleResult, now: float) -> None:
        """A start of a role is over; may be told more than once."""
        slot = self._slots[role]
        if generation != slot.generation or not slot.live:
            return
        slot.result = result
        slot.host, slot.log_path = result.host or slot.host, result.log_path or slot.log_path
        if result.outcome == "left":
            self._workers = tuple(
                replace(worker, running=worker.running and worker.address != slot.worker)
                for worker in self._workers
            )
        if self.phase == "stopping":
            slot.state = "ended"
        elif slot is self._learner:
            self._learner_ended(result, now)
        elif self.phase == "finishing":
            slot.state = "ended"
        else:
            self._actor_ended(slot, result, now)

    def stop(self, now: float, failure: Failure | None = None) -> None:
        """End all roles, because of a failure or not."""
        if self.phase in ("stopping", "ended"):
            return
        self.failure = failure
        self.phase, self._deadline = "stopping", math.inf
        for slot in self._slots.values():
            if slot.state == "waiting":
                slot.state = "ended"
            elif slot.live:
                patience = UNSTARTED_SECONDS if slot.attempt is None else slot.grace + STOP_MARGIN
                slot.state, slot.end_by = "stopping", now + patience
                self._commands.append(Cancel(slot.role, slot.generation))

    def advance(self, now: float) -> list[Command]:
        """Do what is due; returns what is to be done about the tasks, in order."""
        if self.phase == "placing":
            self._place_learner(now)
        elif self.phase == "starting" and now >= self._deadline:
            self._learner_late(now)
        elif self.phase == "running":
            self._place_actors(now)
        elif self.phase == "finishing" and not any(slot.live for slot in self._actors):
            self.phase, self._deadline = "ended", math.inf
        elif self.phase == "finishing" and now >= self._deadline:
            self.stop(now)
        if self.phase == "stopping":
            self._see_to_the_end(now)
        commands, self._commands = self._commands, []
        return commands

    def _place_learner(self, now: float) -> None:
        if now < self._learner.not_before or (self._placement is None and self._gathers(now)):
            return
        try:
            placed = plan(self._workers, self.config) if self._placement is None else self._next_place(now)
        except PlacementError as error:
            if now >= self._deadline:
                seconds = self.config.cluster.worker_seconds
                waited = f"{error} (waited {seconds:g} s, cluster.worker_seconds)"
                self.stop(now, Failure(waited, placement=True))
            elif not self._waiting:
                self._waiting = True
                self.notices.append(f"waiting for workers: {error}")
            return
        if placed is None:
            return
        self._placement, self._waiting = placed, False
        self.phase, self._deadline = "starting", now + self.config.cluster.learner_seconds
        self._commands.append(self._learner.begin(placed.learner, self._learner.generation))

    def _gathers(self, now: float) -> bool:
        """Whether the only worker that there is may soon have company, so that not all has to go there."""
        expected = self.config.runtime == "local" and self.config.cluster.local_workers == 1
        return self._alone() and not expected and now < self._alone_since + GATHERING_SECONDS

    def _alone(self) -> bool:
        return sum(worker.running for worker in self._workers) == 1

    def _next_place(self, now: float) -> Placement | None:
        """Where the lost learner goes; None: it waits for a better place."""
        assert self._placement is not None
        before = self._placement.learner
        occupied = {slot.worker for slot in self._actors if slot.live and slot.worker}
        again = place_again(self._workers, before, occupied)
        if again.crowded and now < self._learner.not_before + CROWDING_SECONDS:
            return None
        return Placement(again.place, (), again.shared)

    def _place_actors(self, now: float) -> None:
        assert self._placement is not None
        waiting = [slot for slot in self._actors if slot.state == "waiting" and slot.not_before <= now]
        if not waiting:
            return
        taken = Counter(slot.worker for slot in self._actors if slot.live and slot.worker)
        learner, shared = self._placement.learner, self._placement.shared
        places = free_places(self._workers, learner, shared, self.config, taken)
        for slot, place in zip(waiting, places, strict=False):
            self._commands.append(slot.begin(place, self._learner.generation))

    def _announce(self, slots: Iterable[Slot]) -> None:
        """Have the workers of some actors told where the learner is, if it is up."""
        if self.phase != "running":
            return
        workers = []
        for slot in slots:
            if slot.live and slot.attempt is not None and slot.worker:
                slot.told = self._learner.generation
                workers.append(slot.worker)
        if workers and self._learner.generation > 0:
            self._commands.append(Announce(frozenset(workers)))

    def _said(self, slot: Slot, message: Mapping[str, Any], now: float) -> None:
        if message["kind"] == "state" and message.get("state") == "running" and slot.state == "starting":
            slot.state = "running"
        elif message["kind"] == "state" and message.get("state") == "reconnecting":
            slot.state = "starting" if slot.state == "running" else slot.state
            self._announce([slot])
        elif message["kind"] == "endpoint" and slot is self._learner:
            self._learner_is_at(message)
            if self.phase == "starting":
                self.phase, self._deadline = "running", math.inf
                self._announce(self._actors)
        elif message["kind"] == "silent" and slot is self._learner:
            self._silent(message, now)
        elif message["kind"] == "note":
            self.notices.append(str(message["text"]))

    def _learner_is_at(self, message: Mapping[str, Any]) -> None:
        self.endpoint = message["endpoint"]
        self.attempt = int(message.get("attempt", 0))

    def _silent(self, message: Mapping[str, Any], now: float) -> None:
        """The learner has heard nothing of an actor for too long: it is stopped, or hangs in foreign code."""
        role = RoleId("actor" if message["role"] == "train" else "eval", int(message["index"]))
        slot = self._slots.get(role)
        if self.phase != "running" or slot is None or not slot.live:
            return
        if message["generation"] == slot.generation:
            what = f"{role} fell silent"
            slot.before = Obituary(f"generation {slot.generation}: {what}", "hung")
            self._judge(slot, what, self._policy.failed(role, None, now), now)

    def _learner_late(self, now: float) -> None:
        seconds, begun = self.config.cluster.learner_seconds, self._learner.attempt is not None
        headline = describe_late(self._learner.worker, begun, seconds)
        if self.endpoint is None or not begun:
            self._fail(self._learner, headline, now)
        else:
            self._judge_learner(headline, None, now)

    def _learner_ended(self, result: RoleResult, now: float) -> None:
        what = f"the learner {describe(result, self._learner.worker)}"
        failed = result.failed
        done = result.exit_code == EXIT_DONE and result.done != STOPPED
        if result.done == FINISHED or (result.outcome == "ended" and done):
            self._learner.state = "ended"
            self.phase, self._deadline = "finishing", now + self.config.actor.stop_seconds
            for slot in self._actors:
                if slot.state == "waiting":
                    slot.state = "ended"
        elif result.outcome == "left":
            self._place_learner_again(what, 0.0, now)
        elif result.exit_code == EXIT_HOPELESS or (failed is not None and not failed.get("retryable", True)):
            self._learner.state = "ended"
            self._fail(self._learner, what, now)
        elif self.endpoint is None and result.outcome != "lost":
            # It has never been up: what it fails by is there from the start.
            self._learner.state = "ended"
            self._fail(self._learner, what, now)
        else:
            self._judge_learner(what, exception_text(failed), now)

    def _judge_learner(self, what: str, text: str | None, now: float) -> None:
        verdict = self._learner_policy.failed(self._learner.role, text, now)
        if isinstance(verdict, str):
            self._learner.state = "ended"
            self._fail(self._learner, f"{what}; {verdict}", now)
        else:
            self._place_learner_again(what, verdict if text is not None else 0.0, now)

    def _place_learner_again(self, what: str, delay: float, now: float) -> None:
        self._commands.append(self._learner.next_generation(now, delay))
        self.learner_restarts += 1
        self.phase, self._deadline = "placing", now + delay + self.config.cluster.worker_seconds
        generation = self._learner.generation
        self.notices.append(f"{what}; starting generation {generation} from the newest checkpoint")

    def _actor_ended(self, slot: Slot, result: RoleResult, now: float) -> None:
        what = f"{slot.role} {describe(result, slot.worker)}"
        slot.before = obituary(result, what, slot.generation)
        failed = result.failed
        if result.outcome == "ended" and result.exit_code == EXIT_DONE and result.done == FINISHED:
            slot.state = "ended"
        elif result.outcome == "left" or (self.phase != "running" and speaks_of_others(failed)):
            self._start_again(slot, what, 0.0, now)
        elif result.outcome in ("lost", "stopped"):
            # A worker's end is not its actors' fault, unless it comes again: they may use up its memory.
            again = now - slot.lost_at < self.config.actor.restart_window_seconds
            slot.lost_at = now
            self._judge(slot, what, self._policy.failed(slot.role, None, now) if again else 0.0, now)
        elif result.exit_code == EXIT_HOPELESS or (failed is not None and not failed.get("retryable", True)):
            slot.state = "ended"
            self._fail(slot, f"{what}; another start would not help", now)
        else:
            self._judge(slot, what, self._policy.failed(slot.role, exception_text(failed), now), now)

    def _judge(self, slot: Slot, what: str, verdict: float | str, now: float) -> None:
        if isinstance(verdict, str):
            slot.state = "ended"
            self._fail(slot, f"{what}; {verdict}", now)
        else:
            self._start_again(slot, what, verdict, now)

    def _start_again(self, slot: Slot, what: str, delay: float, now: float) -> None:
        self._commands.append(slot.next_generation(now, delay))
        self.restarts += 1
        when = f"in {delay:.1f} s" if delay else "as soon as there is a place"
        self.notices.append(f"{what}; starting generation {slot.generation} {when}")

    def _fail(self, slot: Slot, headline: str, now: float) -> None:
        self.stop(now, Failure(headline, slot.role, slot.generation, slot.worker))

    def _see_to_the_end(self, now: float) -> None:
        for slot in self._slots.values():
            if slot.state == "stopping" and now >= slot.end_by:
                slot.state = "ended"
                if slot.attempt is not None:
                    self.notices.append(f"{slot.role} on {slot.host or slot.worker} did not confirm its end")
        if not any(slot.live for slot in self._slots.values()):
            self.phase = "ended"

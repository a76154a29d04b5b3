"""Streams: the order in which a device does what the learner's loops give it.

A GPU works behind the host's back. Each loop has a *stream* of its own there: what is submitted to one stream
is done in that order, and nothing orders two streams but *events*: one stream records an event behind what it
was given so far, another one waits for it. On a CPU the host does the work itself, at once, and `HostStream`
has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

LoopName = Literal["inference", "prefetch", "training"]


class Event(Protocol):
    """A point in a stream's work."""

    def synchronize(self) -> None:
        """Let the calling thread wait until the stream has come there.

        The driver knows no time limit for this; a GPU that fails raises.
        """


class Stream(Protocol):
    """Work in order, for one loop."""

    def submit(self, work: Callable[[], None]) -> None:
        """Give the stream the work that a function issues; it need not be done when this returns."""

    def scope(self) -> AbstractContextManager[object]:
        """What is issued within goes to the stream, as with `submit`; torch waits where a result is read."""

    def record(self) -> Event:
        """An event behind all that was submitted so far."""

    def wait(self, event: Event) -> None:
        """Do what is submitted from now on only after an event of another stream."""


class HostStream:
    """The stream of a loop whose work the host does itself."""

    def submit(self, work: Callable[[], None]) -> None:
        """Do it."""
        work()

    def scope(self) -> AbstractContextManager[object]:
        """A scope that changes nothing."""
        return _UNCHANGED

    def record(self) -> Event:
        """An event that has come."""
        return _PAST

    def wait(self, event: Event) -> None:
        """What was submitted is done."""


class _Past:
    def synchronize(self) -> None:
        """Return at once."""


_PAST = _Past()
_UNCHANGED: AbstractContextManager[object] = nullcontext()

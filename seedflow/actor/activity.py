"""What an actor's environments are doing right now, in memory that outlives the actor.

A crash in foreign code leaves no exception, and a call that never returns leaves nothing at all. The actor's
supervisor, which owns the memory, still reads here which call it was, on which environments, since when.

Examples
--------
>>> activity = Activity(bytearray(SIZE), clock=lambda: 100.0)
>>> activity.begin("step", 1, range(4, 8))
>>> activity.position[0] = 6
>>> activity.describe(), activity.overdue(30.0, now=131.0)
('step of group 1 (environments 4 to 7), environment 6', True)
>>> activity.end()
>>> activity.describe(), activity.overdue(30.0, now=131.0)
('', False)
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

Call = Literal["__init__", "reset", "step", "close"]

SIZE = 64
_CALLS = get_args(Call)
_NUMBERS = {call: number for number, call in enumerate(_CALLS, 1)}  # 0: none
_LAYOUT = struct.Struct("=d5i")  # since, call, group, first and last environment, position
_CALL, _CALL_AT = struct.Struct("=i"), 8
_POSITION = slice(24, 28)
NOBODY = -1
"""As `seedflow.envs.numbered.NOBODY`, whose module loads more than a supervisor needs."""


class Activity:
    """The call that is being made, if any.

    Parameters
    ----------
    memory
        At least `SIZE` bytes, zero at start. Read-only bytes will do for who only looks.
    clock
        Seconds of a clock that all processes of the machine share.

    Attributes
    ----------
    position : memoryview
        Where environments that are stepped one after the other say which of them is at work.
    """

    def __init__(self, memory: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory, self._clock = memory, clock
        self.position = memoryview(memory)[_POSITION].cast("i")

    def begin(self, call: Call, group: int, env_ids: range) -> None:
        """A call of a group's environments begins."""
        number, now = _NUMBERS[call], self._clock()
        _LAYOUT.pack_into(self._memory, 0, now, number, group, env_ids.start, env_ids.stop - 1, NOBODY)

    def end(self) -> None:
        """It has returned."""
        _CALL.pack_into(self._memory, _CALL_AT, 0)

    def overdue(self, seconds: float, now: float | None = None) -> bool:
        """Whether a call has been going on for longer than so many seconds."""
        since, call, *_ = _LAYOUT.unpack_from(self._memory)
        return bool(call) and (self._clock() if now is None else now) - since > seconds

    def describe(self) -> str:
        """The call in words; empty where there is none."""
        _, call, group, first, last, position = _LAYOUT.unpack_from(self._memory)
        if not 1 <= call <= len(_CALLS):
            return ""
        text = f"{_CALLS[call - 1]} of group {group} (environments {first} to {last})"
        return text if position == NOBODY else f"{text}, environment {position}"

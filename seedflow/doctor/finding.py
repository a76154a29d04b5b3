"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "missing", "problem"]
"""missing: something optional is not there; problem: runs will fail or suffer here."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    topic
        What it belongs to: ``packages``, ``machine``, ``gpu``, ``batch`` or ``dask``.
    name
        Of the thing.
    value
        What was found, as JSON has it: a number is in the unit that the name says.
    text
        The same for people.
    level
        See `Level`.
    remedy
        What to type or change; empty where nothing needs to be.
    """

    topic: str
    name: str
    value: Any
    text: str
    level: Level = "ok"
    remedy: str = ""

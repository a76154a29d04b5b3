"""Help for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, if any is; upper and lower case count as alike."""
    by_lower = {other.lower(): other for other in sorted(known)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Text that names the nearest known name, or lists them all.

    Examples
    --------
    >>> did_you_mean("frame_skip", ["frameskip", "noop_max"])
    "did you mean 'frameskip'?"
    >>> did_you_mean("xyz", ["frameskip", "noop_max"])
    'expected one of: frameskip, noop_max'
    """
    names = sorted(known)
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"expected one of: {', '.join(names)}"

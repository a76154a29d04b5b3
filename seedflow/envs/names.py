"""Help for a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of: {', '.join(names)}"

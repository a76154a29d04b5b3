"""From what a person writes to a store."""

from __future__ import annotations

import os
from pathlib import Path

from seedflow.checkpoints.local import LocalStore
from seedflow.checkpoints.store import Store


def open_store(location: str | os.PathLike[str]) -> Store:
    """The store at a path or URL.

    Parameters
    ----------
    location
        A directory, or a URL that fsspec understands; ``file://`` is a directory, too. A run directory stands
        for the checkpoints in it.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    if "://" in text:
        from seedflow.checkpoints.remote import FsspecStore  # fsspec takes time to load

        return FsspecStore(text)
    path = Path(text)
    inside = path / "checkpoints"
    return LocalStore(inside if inside.is_dir() and not (path / "manifests").is_dir() else path)

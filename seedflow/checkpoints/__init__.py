"""Checkpoints on disk or in object stores: numbered generations, each committed as a whole.

=============  ==============================================================================
`store`        `Store`: the few verbs that all else is built on, and what a path may look like
`local`        `LocalStore`: a directory; what it has acknowledged survives a power cut
`remote`       `FsspecStore`: whatever fsspec reaches, if it can refuse to overwrite
`place`        `open_store`: the store at a path or URL
`manifest`     what a generation consists of: parts, files, sizes, checksums
`generations`  `Generations`: drafts, the one commit point, falling back, collecting garbage
`lock`         `WriterLock`: one writer at a time
`background`   `BackgroundSave`: saving while the rest goes on
=============  ==============================================================================

What the parts of a generation hold is not known here: a generation is a set of named parts, each some files
and JSON.
"""

from seedflow.checkpoints.background import BackgroundSave
from seedflow.checkpoints.generations import Draft, Generations, Restored
from seedflow.checkpoints.local import LocalStore
from seedflow.checkpoints.lock import WriterLock
from seedflow.checkpoints.manifest import Manifest, Part, StoredFile
from seedflow.checkpoints.place import open_store
from seedflow.checkpoints.store import Store

__all__ = [
    "BackgroundSave",
    "Draft",
    "Generations",
    "LocalStore",
    "Manifest",
    "Part",
    "Restored",
    "Store",
    "StoredFile",
    "WriterLock",
    "open_store",
]

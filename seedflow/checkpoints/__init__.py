"""Checkpoints on disk or in object stores: numbered generations, each committed as a whole.

=============  ==============================================================================
`store`        `Store`: the few verbs that all else is built on, and what a path may look like
`local`        `LocalStore`: a directory; what it has acknowledged survives a power cut
`remote`       `FsspecStore`: whatever fsspec reaches, if it can refuse to overwrite
`place`        `open_store`: the store at a path or URL
`manifest`     what a generation consists of: parts, files, sizes, checksums
`generations`  `Generations`: drafts, the one commit point, falling back, collecting garbage
`writer`       `Writer`: a process that writes, as its record in the store names it
`fence`        `Fence`: keeping a learner that was replaced from writing any more
`lock`         `WriterLock`: one writer at a time
`background`   `BackgroundSave`: saving while the rest goes on
=============  ==============================================================================

What the parts of a generation hold is not known here: a generation is a set of named parts, each some files
and JSON.
"""

from seedflow.checkpoints.background import BackgroundSave
from seedflow.checkpoints.fence import Fence
from seedflow.checkpoints.generations import Draft, Generations, Restored
from seedflow.checkpoints.local import LocalStore
from seedflow.checkpoints.lock import WriterLock
from seedflow.checkpoints.manifest import Manifest, Part, StoredFile
from seedflow.checkpoints.place import open_store
from seedflow.checkpoints.store import Store
from seedflow.checkpoints.writer import Writer

__all__ = [
    "BackgroundSave",
    "Draft",
    "Fence",
    "Generations",
    "LocalStore",
    "Manifest",
    "Part",
    "Restored",
    "Store",
    "StoredFile",
    "Writer",
    "WriterLock",
    "open_store",
]

"""Keeping a learner that was replaced, but lives on, from writing any more.

A learner whose host was cut off, or that was stopped and goes on later, does not know that another one has
taken its place. What both can see is the record of who writes checkpoints: it names the run and which start
of its learner, its generation, has the right to write. The higher generation takes over by putting its own
record there; every write of the lower one looks at the record first.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from seedflow.checkpoints.store import Store
from seedflow.checkpoints.writer import Writer
from seedflow.errors import CheckpointConflict, CheckpointDamaged, CheckpointError, CheckpointFenced

RECORD = "writer.json"
GUARD = "commit.lock"
GUARD_SECONDS = 30.0
"""How long one write, of a manifest or of a line of metrics, may keep others waiting."""
POLL_SECONDS = 0.02

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


class Fence:
    """Whether a learner may still write into its run's directory.

    Between `check` and the write, a later generation could take over. `writing` closes that gap where the
    store has files that can be locked: while its block lasts, nobody takes over.

    Parameters
    ----------
    store
        Where the record is.
    writer
        Who asks. One without a run is never fenced.
    """

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer

    def check(self) -> None:
        """Make sure that no later generation has taken over.

        Raises
        ------
        CheckpointFenced
            If one has.
        """
        if not self._writer.run:
            return
        try:
            holder = Writer.parse(self._store.read(RECORD))
        except CheckpointDamaged:  # nobody has written there yet
            return
        if holder is not None and holder.fences(self._writer):
            raise fenced(holder, self._writer, self._store)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off every later generation for the time of one short write.

        Raises
        ------
        CheckpointFenced
            If one has taken over already; nothing must be written then.
        CheckpointConflict
            If another process does not end its own write.
        """
        with self.guarded():
            self.check()
            yield

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Hold off every other write and take-over of this run.

        Raises
        ------
        CheckpointConflict
            If another process holds it for too long.
        """
        fd = self._store.open_lock(GUARD) if self._writer.run else None
        if fd is None:
            yield
            return
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + GUARD_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise CheckpointConflict(
                        f"another process has held {self._store}/{GUARD} for {GUARD_SECONDS:g} s: it was "
                        "stopped in the middle of a write, or its file system does not answer"
                    ) from None
                time.sleep(POLL_SECONDS)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise CheckpointError(
                        f"{self._store}/{GUARD} cannot be locked: {error.strerror}"
                    ) from error
                return
            else:
                return


def fenced(holder: Writer, writer: Writer, store: Store) -> CheckpointFenced:
    """The error of a learner that finds a later one in its place."""
    if holder.generation == writer.generation:
        why = f"generation {writer.generation} of this run's learner was started before"
    else:
        why = f"generation {holder.generation} of this run's learner has taken over"
    return CheckpointFenced(
        f"{why}, {holder}; this one, generation {writer.generation}, writes nothing more to {store} and ends"
    )

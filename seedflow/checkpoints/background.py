"""Saving while the rest goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundSave:
    """Runs one save at a time in a thread of its own.

    A failure is kept until somebody asks: `result` raises it.

    Examples
    --------
    >>> saving = BackgroundSave()
    >>> saving.start(lambda: 12)
    >>> saving.result()
    12
    >>> saving.result() is None
    True
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._generation: int | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, save: Callable[[], int]) -> None:
        """Begin a save; `save` returns the generation that it committed.

        Raises
        ------
        RuntimeError
            When the one before has not been asked for its result.
        """
        if self._thread is not None:
            raise RuntimeError(
                "a save is being written, or its result has not been taken; call result() first"
            )
        self._thread = threading.Thread(target=self._run, args=(save,), name="seedflow-save")
        self._thread.start()

    def result(self, timeout: float | None = None) -> int | None:
        """Wait for the save; returns its generation, None where none was begun.

        Raises
        ------
        TimeoutError
            When it takes longer than `timeout` seconds; it goes on.
        Exception
            What the save raised.
        """
        if self._thread is None:
            return None
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the checkpoint is still being written after {timeout} s")
        self._thread = None
        generation, failure = self._generation, self._failure
        self._generation = self._failure = None
        if failure is not None:
            raise failure
        return generation

    def _run(self, save: Callable[[], int]) -> None:
        try:
            self._generation = save()
        except BaseException as failure:  # not lost: `result` raises it
            self._failure = failure

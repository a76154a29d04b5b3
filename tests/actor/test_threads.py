"""Numeric libraries of an actor run one thread."""

from __future__ import annotations

from seedflow.actor.threads import THREAD_VARIABLES, limit_threads


def test_every_library_gets_one_thread_and_the_log_says_so() -> None:
    environ = {"OMP_NUM_THREADS": "8", "HOME": "/"}
    text = limit_threads(environ)
    assert environ.pop("HOME") == "/"
    assert environ == dict.fromkeys(THREAD_VARIABLES, "1")
    assert "OMP_NUM_THREADS=1" in text

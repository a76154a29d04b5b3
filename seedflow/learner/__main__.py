"""The learner process, ``python -m seedflow.learner``; started and supervised by `RoleProcess`."""

from __future__ import annotations

import traceback

from seedflow.roles import EXIT_HOPELESS, RoleChannel, failure, run_role
from seedflow.roles.logs import begin_log

ORPHAN_SECONDS = 20.0  # a checkpoint may be large


def main(channel: RoleChannel) -> int:
    """Run one learner; returns the exit code."""
    begin_log(channel.start)
    channel.send({"kind": "state", "state": "starting"})
    try:
        from seedflow.errors import ConfigError
        from seedflow.learner.memory import keep_freed_memory

        keep_freed_memory()
        from seedflow.learner.session import run_learner
        from seedflow.learner.start import LearnerStart

        start = LearnerStart.parse(channel.start)
        token = str(channel.start["token"])
    except (ImportError, KeyError, ConfigError) as error:
        traceback.print_exc()
        channel.send(failure(error, retryable=False))
        return EXIT_HOPELESS
    return run_learner(channel, token, start)


if __name__ == "__main__":
    run_role(main, ORPHAN_SECONDS)

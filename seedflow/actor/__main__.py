"""The actor process, ``python -m seedflow.actor``; started and supervised by `seedflow.roles.RoleProcess`."""

from __future__ import annotations

import logging
import traceback

from seedflow.actor.threads import limit_threads
from seedflow.errors import SeedflowError
from seedflow.roles import EXIT_HOPELESS, RoleChannel, failure, run_role
from seedflow.roles.logs import begin_log


def main(channel: RoleChannel) -> int:
    """Run one actor; returns the exit code."""
    begin_log(channel.start)
    threads = limit_threads()
    logging.getLogger("seedflow.actor").info(threads)
    try:
        # Loads numpy, hence after the threads are limited.
        from seedflow.actor.session import ActorSession
        from seedflow.actor.start import ActorStart

        session = ActorSession(channel, ActorStart.parse(channel.start))
    except (ImportError, KeyError, SeedflowError) as error:
        traceback.print_exc()
        channel.send(failure(error, retryable=False))
        return EXIT_HOPELESS
    return session.run()


if __name__ == "__main__":
    run_role(main)

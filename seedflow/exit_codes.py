"""What the exit code of a program says about a run.

0 done, 1 failed, 2 bad usage or configuration, 75 stopped early with a checkpoint and worth requeueing
(``EX_TEMPFAIL``), 128 + n ended by signal n; 143, as for SIGTERM, where `seedflow stop` has ended it.
"""

from __future__ import annotations

import signal

from seedflow.errors import ConfigError, RunStopped, RunSuspended, SpecError
from seedflow.interrupts import Signalled

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REQUEUE = 75
EXIT_STOPPED = 128 + signal.SIGTERM


def exit_code(error: BaseException | None) -> int:
    """The code for what has ended a run; 0 where nothing did.

    Examples
    --------
    >>> exit_code(None), exit_code(ConfigError("no such key")), exit_code(KeyboardInterrupt())
    (0, 2, 130)
    """
    match error:
        case None:
            return EXIT_DONE
        case Signalled():
            return 128 + error.number
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
        case SystemExit():
            return error.code if isinstance(error.code, int) else EXIT_FAILED
        case ConfigError() | SpecError():
            return EXIT_USAGE
        case RunSuspended():
            return EXIT_REQUEUE
        case RunStopped():
            return EXIT_STOPPED
    return EXIT_FAILED

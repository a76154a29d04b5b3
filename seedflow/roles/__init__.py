"""How a supervisor and a role process talk, and how a role ends with everything below it.

A *role* (actor, learner) is a child process ``python -m <module>``. Its supervisor holds a
`RoleProcess`, the role itself a `RoleChannel`; between them run two inherited pipes that carry one JSON
object a line. Down: ``start`` (always first), ``endpoint`` (the learner has moved) and ``stop``. Up:
``state``, ``endpoint``, ``metrics``, ``failed`` and ``done``. What a role prints, and what its libraries
print, goes to a log file.

Secrets travel in the start message only: it is in no argument list, environment or log.

Who ends what
-------------
- A role watches its end of the pipe. End-of-file, or another parent process id, means that the supervisor
  is gone: the role stops, and after a grace it ends itself and all that it has started. The kernel's
  ``PR_SET_PDEATHSIG`` is not used: it is bound to the *thread* that started the child, and supervisors
  start roles from short-lived threads; it would not reach grandchildren either.
- A role leads a session of its own, and its environment holds a marker that its children inherit. By
  session or marker, a role at its end and a supervisor after a role's end find what is left and end it.
- SIGINT is ignored in a role: a Ctrl-C in the terminal concerns the driver, which stops the roles in order.
  SIGTERM asks for a stop, as the ``stop`` message does.
"""

from seedflow.roles.channel import RoleChannel, run_role
from seedflow.roles.messages import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_HOPELESS,
    FINISHED,
    STOPPED,
    Message,
    failure,
)
from seedflow.roles.process import RoleProcess

__all__ = [
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_HOPELESS",
    "FINISHED",
    "STOPPED",
    "Message",
    "RoleChannel",
    "RoleProcess",
    "failure",
    "run_role",
]

"""The exceptions that seedflow raises on purpose.

::

    SeedflowError
    ├── ConfigError          a setting is wrong, an environment's included; nothing was started
    ├── SpecError            an array does not have the agreed shape or dtype
    ├── NumericalError       an array holds an infinity or NaN (`kernels.check`)
    ├── EnvironmentFault     an environment cannot be reset or stepped, or one's own cannot be made
    ├── TransportError       the connection between an actor and its learner
    │   ├── RegistrationRefused   the learner said no; `retryable` tells whether to try again
    │   └── ConnectionLost        the other side went away
    ├── CheckpointError      a checkpoint is missing, damaged or of a newer version, or cannot be written
    │   ├── CheckpointDamaged     part of one is missing or not what was written; an older one may do
    │   └── CheckpointConflict    another process writes checkpoints in the same place
    │       └── CheckpointFenced      a later start of the run's learner has taken over
    ├── DamagedChunk         an encoded array of the replay is not what was stored
    ├── ReplayFull           the replay's memory limit is too small for what arrives
    ├── PlacementError       a role cannot be placed on the Dask cluster
    ├── RunFailed            a role failed in a way that a restart cannot cure
    ├── RunSuspended         a run stopped early, with a checkpoint from which it can go on
    └── RunStopped           a run was stopped by `seedflow stop`
"""


class SeedflowError(Exception):
    """Base of every exception raised on purpose by seedflow."""


class ConfigError(SeedflowError):
    """A setting is wrong. The message names key, value, what was expected and what to do."""


class SpecError(SeedflowError):
    """An array or space does not have the agreed shape or dtype."""


class NumericalError(SeedflowError):
    """An array holds an infinity or NaN where only finite numbers make sense."""


class EnvironmentFault(SeedflowError):
    """An environment cannot be reset or stepped, returns what it should not, or one's own cannot be made.

    Parameters
    ----------
    text
        The message.
    identity
        What this fault has in common with the next one of its kind, where the message names a place or time
        that the next one will not share. Default: the message.
    """

    def __init__(self, text: str, identity: str | None = None) -> None:
        super().__init__(text)
        self.identity = identity


class TransportError(SeedflowError):
    """Base of what can go wrong between an actor and its learner."""


class RegistrationRefused(TransportError):
    """The learner refused a registration.

    Parameters
    ----------
    reason
        What the learner said.
    retryable
        Whether the same registration may succeed later (the slab is full, say).
    """

    def __init__(self, reason: str, retryable: bool = False) -> None:
        super().__init__(reason)
        self.retryable = retryable


class ConnectionLost(TransportError):
    """The other side of a connection went away or stayed silent for too long."""


class CheckpointError(SeedflowError):
    """A checkpoint is missing, damaged or of a version this release does not read, or cannot be written."""


class CheckpointDamaged(CheckpointError):
    """Something in a checkpoint is missing or is not what was written; an older one may be whole."""


class CheckpointConflict(CheckpointError):
    """Another process writes checkpoints in the same place."""


class CheckpointFenced(CheckpointConflict):
    """A later start of the same run's learner has taken over; this one must write nothing more."""


class DamagedChunk(SeedflowError):
    """An encoded array of the replay has a wrong checksum, size or frame."""


class ReplayFull(SeedflowError):
    """The data that arrives does not compress enough for the replay's memory limit."""


class PlacementError(SeedflowError):
    """A role cannot be placed on the Dask cluster; the message says what is missing."""


class RunFailed(SeedflowError):
    """A role failed in a way that a restart cannot cure; carries the remote traceback."""


class RunSuspended(SeedflowError):
    """A run stopped early, with a checkpoint from which it can go on: worth requeueing."""


class RunStopped(SeedflowError):
    """Another process has asked for the end of a run (`seedflow stop`), and got it."""

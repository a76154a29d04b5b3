"""What a learner is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seedflow.config import Config
from seedflow.errors import ConfigError, TransportError
from seedflow.roles import Message
from seedflow.rpc.tls import Tls
from seedflow.specs import EnvSpec


@dataclass(frozen=True)
class LearnerStart:
    """The start message of a learner, checked.

    Attributes
    ----------
    host
        Address that the gateway binds: the Dask worker's own.
    resume
        Go on from the run's newest checkpoint.
    run, generation
        Name of the run, and how many starts of its learner were before this one. A later start goes on from
        the newest checkpoint, if there is one by then.
    restore_replay
        Otherwise, begin with the replay of these checkpoints of another run.
    tls
        The worker's certificate, where the Dask cluster uses TLS.
    """

    config: Config
    spec: EnvSpec
    run_dir: Path
    host: str
    resume: bool
    run: str = ""
    generation: int = 0
    tls: Tls | None = None
    restore_replay: str | None = None

    @classmethod
    def parse(cls, message: Message) -> LearnerStart:
        """Check a start message.

        Raises
        ------
        ConfigError
            Names what is missing or wrong.
        """
        try:
            return cls(
                config=Config.model_validate(message["config"]),
                spec=EnvSpec.from_json(message["spec"]),
                run_dir=Path(message["run_dir"]),
                host=str(message["host"]),
                resume=bool(message["resume"]),
                run=str(message.get("run", "")),
                generation=int(message.get("generation", 0)),
                tls=Tls.from_json(message.get("tls")),
                restore_replay=message.get("restore_replay"),
            )
        except KeyError as error:
            raise ConfigError(f"the learner's start message lacks {error}") from error
        except (ValueError, TypeError, TransportError) as error:
            raise ConfigError(f"the learner's start message is wrong: {error}") from error

"""What an actor is told at its start, checked."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, get_args

from seedflow.config.tree import Config
from seedflow.errors import ConfigError
from seedflow.roles.messages import Message
from seedflow.rpc.leases import Role
from seedflow.rpc.messages import FaultKind
from seedflow.specs import EnvSpec


@dataclass(frozen=True)
class Obituary:
    """How an actor ended that could not tell, for its successor to tell the learner."""

    text: str
    kind: FaultKind

    @classmethod
    def parse(cls, value: Any) -> Obituary | None:
        """Check what a start message says. Raises ValueError."""
        if value is None:
            return None
        if not isinstance(value, dict) or value.get("kind") not in get_args(FaultKind):
            raise ValueError(f"before = {value!r}: expected null or text and kind")
        return cls(str(value.get("text")), value["kind"])


@dataclass(frozen=True)
class ActorStart:
    """The start message of an actor, checked.

    Attributes
    ----------
    attempt
        Number of the checkpoint that the run went on from, 0 for a new run: a resumed run does not replay
        the episodes before.
    env_fn
        The user's environment function, pickled by cloudpickle, or None.
    ship
        Modules of the user's (`seedflow.envs.shipped.pack`), or None.
    before
        How the generation before ended, if it could not tell itself.
    """

    config: Config
    spec: EnvSpec
    role: Role
    index: int
    generation: int
    attempt: int
    env_fn: bytes | None
    before: Obituary | None = None
    ship: bytes | None = None

    @classmethod
    def parse(cls, message: Message) -> ActorStart:
        """Check a start message.

        Raises
        ------
        ConfigError
            Names what is missing or wrong.
        """
        try:
            if message["role"] not in ("train", "eval"):
                raise ValueError(f"role = {message['role']!r}: expected train or eval")
            env_fn, ship = message.get("env_fn"), message.get("ship")
            return cls(
                config=Config.model_validate(message["config"]),
                spec=EnvSpec.from_json(message["spec"]),
                role=message["role"],
                index=int(message["index"]),
                generation=int(message["generation"]),
                attempt=int(message.get("attempt", 0)),
                env_fn=None if env_fn is None else base64.b64decode(env_fn, validate=True),
                before=Obituary.parse(message.get("before")),
                ship=None if ship is None else base64.b64decode(ship, validate=True),
            )
        except KeyError as error:
            raise ConfigError(f"the actor's start message lacks {error}") from error
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the actor's start message is wrong: {error}") from error


def shape_of(config: Config, role: Role) -> tuple[int, int]:
    """Groups and environments per group of an actor."""
    if role == "train":
        return config.actor.groups, config.actor.envs_per_group
    if config.eval_shape is None:  # a config that evaluates was checked for this
        raise ConfigError(f"eval.envs = {config.eval.envs} does not fit the blocks of this run")
    return config.eval_shape

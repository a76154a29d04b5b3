"""Going on exactly where a run in one process was saved: the same bits as if it had never stopped.

Beside weights, optimizer, replay and counters this takes everything that is under way between two rounds of
the loops: rows of the slab, core states, unrolls or chunks in the making, and the open episodes, each as a
seed and its actions (`seedflow.envs.episodes`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedflow.actor.stepping import ActorLoop
from seedflow.config import Config
from seedflow.envs.base import OpenEpisode
from seedflow.learner.batcher import PendingGroup
from seedflow.learner.inference import named_groups
from seedflow.learner.learner import Learner
from seedflow.nested import Arrays, nest, numbers, part
from seedflow.rpc.inline import InlineConnection, InlineTransport

SECTIONS = ("seed", "env", "actor", "inference", "rollout", "network", "algo", "replay", "eval")
"""Settings that must be the same for a run to go on exactly."""

Actor = tuple[InlineConnection, ActorLoop]


def settings_of(config: Config) -> dict[str, Any]:
    """What a checkpoint remembers of the settings."""
    return config.model_dump(mode="json", include=set(SECTIONS))


def why_not(settings: Mapping[str, Any], config: Config) -> str | None:
    """Why a run cannot go on exactly under other settings, or None where it can."""
    now = settings_of(config)
    changed = [name for name in SECTIONS if settings.get(name) != now[name]]
    return f"settings of {', '.join(changed)} have changed" if changed else None


def state_of(transport: InlineTransport, learner: Learner, actors: Sequence[Actor]) -> Arrays | None:
    """All that is under way between two rounds; None where it cannot be described yet."""
    if not all(loop.begun for _, loop in actors):
        return None
    answered = [
        PendingGroup(connection.lease, group, 0.0) for connection, _ in actors for group in connection.replies
    ]
    return nest(
        slab=transport.slab.fields,
        serving=learner.serving.state(),
        pipeline=learner.trainer.pipeline.state(),
        actors={"answered": named_groups(answered)},
        episodes={
            f"{i}/{g}/{e}": _array_of(episode)
            for i, (_, loop) in enumerate(actors)
            for g, group in enumerate(loop.open_episodes())
            for e, episode in enumerate(group)
        },
    )


def go_on_from(arrays: Arrays, transport: InlineTransport, learner: Learner, actors: Sequence[Actor]) -> None:
    """Bring a learner that was restored, and actors that have just registered, to what `state_of` gave."""
    for connection, _ in actors:
        for group in range(connection.lease.groups):
            connection.rows(group)["first"][:] = True  # as the first rows of a lease must be
            connection.ring(group)
    learner.serving.go_on_from(part(arrays, "serving"))
    learner.trainer.pipeline.go_on_from(part(arrays, "pipeline"))
    for name, field in transport.slab.fields.items():
        field[...] = arrays[f"slab/{name}"]
    leases = {(c.lease.role == "eval", c.lease.index): c.lease for c, _ in actors}
    for evaluates, index, group in arrays["actors/answered"].tolist():
        transport.reply(leases[bool(evaluates), index].id, group)
    for i, (connection, loop) in enumerate(actors):
        lease = connection.lease
        loop.go_on_from(
            [
                [_episode_of(arrays[f"episodes/{i}/{group}/{e}"]) for e in range(lease.envs)]
                for group in range(lease.groups)
            ]
        )


def _array_of(episode: OpenEpisode) -> NDArray[np.int64]:
    return numbers(episode.number, episode.ended, *episode.actions)


def _episode_of(array: NDArray[np.int64]) -> OpenEpisode:
    number, ended, *actions = array.tolist()
    return OpenEpisode(number, tuple(actions), bool(ended))

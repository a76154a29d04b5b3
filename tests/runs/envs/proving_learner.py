"""``python -m proving_learner``: the learner, which checks every unroll of `proving_envs` that it trains on.

What is wrong ends the run with its traceback. Now and then it writes ``proof.json`` into the run directory:
how many unrolls it has checked, and when and in which generation of its actor each environment was last seen.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from proving_envs import LENGTH

from seedflow.actor.session import GENERATION_BITS, RECONNECT_BITS
from seedflow.algos.vtrace.learning import VTraceLearning
from seedflow.config import Config
from seedflow.envs.seeding import env_seed, joint_seed, seed_integer
from seedflow.learner import __main__ as learner
from seedflow.learner.inference import InferenceLoop
from seedflow.learner.start import LearnerStart
from seedflow.roles import RoleChannel, run_role
from seedflow.rpc.leases import Lease

AHEAD = 40
"""Generations beyond the newest known one among which a name is looked for."""
RECONNECTIONS = 4
WRITE_EVERY = 20


class Proof:
    """What the unrolls of a run have shown so far."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        self._config, self._run_dir = config, run_dir
        self._names: dict[int, tuple[int, int, int]] = {}  # name: actor, group, incarnation
        self._known: dict[int, int] = dict.fromkeys(range(config.actor.count), -1)
        self._next: dict[tuple[int, int], int] = {}  # name and place: where the next unroll begins
        self._seen: dict[int, tuple[int, int]] = {}  # environment: incarnation, update
        self.updates = self.unrolls = 0

    def check(self, fields: dict[str, np.ndarray]) -> None:
        """All unrolls of one training batch, in the order in which they became ready."""
        self.updates += 1
        for b in range(fields["first"].shape[1]):
            self._unroll({name: value[:, b] for name, value in fields.items()})
        if self.updates % WRITE_EVERY == 0:
            proof = {"updates": self.updates, "unrolls": self.unrolls, "incarnations": len(self._names)}
            seen = {str(env): {"generation": g, "update": u} for env, (g, u) in self._seen.items()}
            draft = self._run_dir / ".proof.json"
            draft.write_text(json.dumps({**proof, "seen": seen}))
            draft.replace(self._run_dir / "proof.json")

    def _unroll(self, unroll: dict[str, np.ndarray]) -> None:
        name, place, count, step = unroll["observation"].T
        assert (name == name[0]).all(), "one incarnation"
        assert (place == place[0]).all(), "one environment"
        assert (np.diff(count) == 1).all(), "no index lost, doubled or out of order"
        np.testing.assert_array_equal(step[1:], np.where(step[:-1] == LENGTH, 0, step[:-1] + 1))
        np.testing.assert_array_equal(unroll["first"], step == 0)
        np.testing.assert_array_equal(unroll["terminated"], step == LENGTH)
        assert not unroll["truncated"].any()
        np.testing.assert_array_equal(unroll["reward"], step.astype(np.float32))
        assert ((unroll["action"] >= 0) & (unroll["action"] < 2)).all()
        key = int(name[0]), int(place[0])
        assert count[0] == self._next.get(key, 0), "unrolls follow one another and begin with the reset"
        self._next[key] = int(count[-1])
        self._belongs(*key)
        self.unrolls += 1

    def _belongs(self, name: int, place: int) -> None:
        """The environment is one of the run, and none of an actor that has been replaced comes after."""
        actor, group, incarnation = self._find(name)
        config = self._config.actor
        assert 0 <= place < config.envs_per_group
        env = (actor * config.groups + group) * config.envs_per_group + place
        before, _ = self._seen.get(env, (0, 0))
        assert incarnation >= before, f"environment {env} of {incarnation} after {before}"
        self._seen[env] = incarnation, self.updates

    def _find(self, name: int) -> tuple[int, int, int]:
        if name in self._names:
            return self._names[name]
        config = self._config.actor
        envs = config.envs_per_group
        for actor, known in self._known.items():
            generations = range(max(known, 0), known + AHEAD)
            for generation, again, group in itertools.product(
                generations, range(RECONNECTIONS), range(config.groups)
            ):
                incarnation = (generation << RECONNECT_BITS) + again
                start = (actor * config.groups + group) * envs
                seeds = [
                    env_seed(self._config.seed, "actor", env, incarnation)
                    for env in range(start, start + envs)
                ]
                if seed_integer(joint_seed(seeds)) == name:
                    self._known[actor] = generation
                    self._names[name] = actor, group, incarnation
                    return self._names[name]
        raise AssertionError(f"{name} names no incarnation of any actor")


def checking(proof: Proof, update: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, batch: Any, learning_rate: float) -> Any:
        proof.check({name: value.numpy() for name, value in batch.fields.items()})
        return update(self, batch, learning_rate)

    return checked


def alone(opened: Callable[..., None]) -> Callable[..., None]:
    def checked(self: Any, lease: Lease) -> None:
        opened(self, lease)
        owned = [env for other in self._leases.values() for env in other.env_ids]
        assert len(owned) == len(set(owned)), "two actors with one environment"

    return checked


def main(channel: RoleChannel) -> int:
    assert GENERATION_BITS >= 20
    start = LearnerStart.parse(channel.start)
    proof = Proof(start.config, start.run_dir)
    VTraceLearning.update = checking(proof, VTraceLearning.update)  # type: ignore[method-assign]
    InferenceLoop._opened = alone(InferenceLoop._opened)  # type: ignore[method-assign]
    return learner.main(channel)


if __name__ == "__main__":
    run_role(main, learner.ORPHAN_SECONDS)

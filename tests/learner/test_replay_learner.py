"""What gets into the replay of a learner, and how training is held to the inserts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedflow.actor.stepping import ActorLoop
from seedflow.algos.r2d2.learning import R2D2Learning
from seedflow.config import Config, ReplayConfig
from seedflow.envs import env_seed, make_group, probe_spec
from seedflow.envs.synthetic import counting_observation, counting_reward
from seedflow.errors import CheckpointError
from seedflow.learner.checkpoint import CheckpointStore
from seedflow.learner.learner import Learner
from seedflow.learner.leases import lease_table
from seedflow.learner.pipelines import ReplayPipeline
from seedflow.networks import NetworkInput
from seedflow.replay.replay import Replay
from seedflow.replay.sampling import SequenceBatch
from seedflow.rpc.inline import InlineTransport
from seedflow.rpc.leases import Registration
from seedflow.rpc.slab import BlockLayout, Slab
from tests.learner.rig import COUNTING, SplitLearner, counting_config, learner_with_actor

ENVS = 4
UNLIMITED = {"tolerance": 1e6}


def replay_config(**sections: object) -> Config:
    base = {
        "algo": {"name": "r2d2", "n_step": 2},
        "replay": {
            "capacity": 300,
            "chunk": 4,
            "burn_in": 4,
            "unroll": 8,
            "period": 4,
            "min_size": 20,
            "priority_exponent": 0.0,
            "samples_per_insert": 2.0,
            "tolerance": 8.0,
        },
        "train": {"batch": 4},
        "rollout": {"prefetch": 1},
    }
    merged = {
        name: {**base.get(name, {}), **values} if isinstance(values, dict) else values
        for name, values in (base | sections).items()
    }
    return counting_config(**merged)


class Stepped:
    """A learner and its actors in one thread."""

    def __init__(self, learner: Learner, actors: list[ActorLoop]) -> None:
        self.learner, self.actors = learner, actors
        assert isinstance(learner.trainer.pipeline, ReplayPipeline)
        self.pipeline = learner.trainer.pipeline
        self.replay = self.pipeline.replay

    def act(self) -> None:
        """One step of every environment that is answered."""
        for actor in self.actors:
            while actor.step(0.0) is not None:
                pass
        self.learner.inference.step(0.0)

    def everything(self) -> SequenceBatch:
        """All sequences held."""
        return everything(self.replay)


def everything(replay: Replay) -> SequenceBatch:
    """All sequences that a replay holds, drawn from a copy that no limiter guards."""
    spec = replay.spec
    geometry = {name: getattr(spec, name) for name in ("chunk", "burn_in", "unroll", "period")}
    config = ReplayConfig(
        capacity=len(replay), min_size=1, tolerance=1e9, priority_exponent=0.0, decode_threads=1, **geometry
    )
    copy = Replay(spec, config, 0, snapshot=replay.snapshot())
    batch = SequenceBatch(spec, 2 * len(copy))
    assert copy.sample(batch)
    copy.close()
    return batch


@contextmanager
def stepped(
    config: Config,
    run_dir: Path,
    evaluation: Config | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Iterator[Stepped]:
    """A learner with one training actor, and one whose environments are those of another config."""
    spec = probe_spec(config.env)
    layout = BlockLayout(spec, config.actor.groups, config.actor.envs_per_group)
    table = lease_table(config, spec)
    with ExitStack() as stack:
        slab = stack.enter_context(Slab(layout, table.blocks))
        transport = InlineTransport(layout, slab, table)
        learner = Learner(config, spec, transport, run_dir, report)
        stack.callback(learner.close)
        actors = []
        for role, env in (("train", config.env), ("eval", evaluation.env if evaluation else None)):
            if env is None:
                continue
            connection = transport.connect(
                Registration(role, 0, 0, spec.fingerprint, layout.groups, layout.envs)  # type: ignore[arg-type]
            )
            seeds = [env_seed(config.seed, "actor", i, 0) for i in connection.env_ids]
            group = make_group(env, layout.envs, seeds)
            actors.append(stack.enter_context(ActorLoop(connection, [group])))
        yield Stepped(learner, actors)


def network_input(batch: SequenceBatch, part: slice) -> NetworkInput:
    fields = {name: torch.from_numpy(value.swapaxes(0, 1)[part]) for name, value in batch.fields.items()}
    return NetworkInput((fields["observation"],), fields["reward"], fields["first"], fields["action"])


@pytest.mark.parametrize(("burn_in", "unroll", "period"), [(4, 8, 4), (4, 8, 8), (0, 8, 8)])
def test_sequences_are_runs_of_one_environment_that_begin_every_period(
    burn_in: int, unroll: int, period: int, tmp_path: Path
) -> None:
    config = replay_config(replay={"burn_in": burn_in, "unroll": unroll, "period": period, **UNLIMITED})
    (leaf,) = probe_spec(config.env).observation
    with stepped(config, tmp_path) as run:
        while len(run.replay) < 40:
            run.act()
            run.pipeline.prefetch.step()
        batch, seen = run.everything(), set()
    for b in range(batch.size):
        fields = {name: value[b] for name, value in batch.fields.items()}
        env, begin = divmod(int(fields["observation"][0, 0]), 1000)
        seen.add((env, begin))
        for t in range(batch.spec.length):
            np.testing.assert_array_equal(
                fields["observation"][t], counting_observation(env, begin + t, leaf)
            )
            first = bool(fields["first"][t])
            assert fields["reward"][t] == (0.0 if first else counting_reward(env, begin + t))
            if t:
                assert fields["first"][t] == (fields["terminated"][t - 1] or fields["truncated"][t - 1])
    most = max(begin for _, begin in seen)
    assert {begin for _, begin in seen} == set(range(0, most + 1, period))
    assert {env for env, _ in seen} == set(range(ENVS))


@pytest.mark.parametrize("burn_in", [0, 8, 40])
def test_the_stored_state_is_what_the_network_had_when_it_acted(burn_in: int, tmp_path: Path) -> None:
    """Run on from one sequence's beginning, it has at the next one's beginning the state stored there.

    Episodes last 2 to 5 steps, so they begin and end within every burn-in.
    """
    config = replay_config(replay={"burn_in": burn_in, "unroll": 8, "period": 8, "chunk": 8, **UNLIMITED})
    with stepped(config, tmp_path) as run:
        while len(run.replay) < 30:
            run.act()
            run.pipeline.prefetch.step()
        batch = run.everything()
        state = tuple(torch.from_numpy(part) for part in batch.state)
        period, network = run.replay.spec.period, run.learner.algorithm.learning.network
        with torch.no_grad():
            inputs = network_input(batch, slice(0, period))
            _, after = network(inputs, state)
            after = network.remember(after, inputs.action[-1])  # type: ignore[operator, index]
    places = {tuple(divmod(int(o[0, 0]), 1000)): b for b, o in enumerate(batch.fields["observation"])}
    followed = 0
    for (env, begin), b in places.items():
        next_b = places.get((env, begin + period))
        if next_b is None:
            continue
        # Stored is what was fed: nothing of the episode before where one begins.
        keep = not batch.fields["first"][next_b, 0]
        for stored, expected in zip(state, after, strict=True):
            torch.testing.assert_close(stored[next_b], expected[b] * keep, rtol=0, atol=1e-5)
        followed += keep
    assert followed > 10
    assert any(not batch.state[1][b].any() for (_, begin), b in places.items() if begin == 0)


def test_initial_priorities_are_those_of_the_first_update(tmp_path: Path) -> None:
    """Acting, trained and target network are the same before anything was trained."""
    with stepped(replay_config(), tmp_path) as run:
        learning = run.learner.algorithm.learning
        assert isinstance(learning, R2D2Learning)
        while not run.pipeline.prefetch.step() or not len(run.pipeline.filled):
            run.act()
        (batch,) = (run.pipeline.batches[i] for i in run.pipeline.filled.take(1))
        sequences = run.replay.snapshot().sequences
        initial = dict(zip(sequences.generation.tolist(), sequences.priority.tolist(), strict=True))
        updated = learning.update(batch.unrolls, batch.weights, 1e-3)
    expected = [initial[generation] for generation in batch.generations.tolist()]
    assert len(set(expected)) > 2
    assert updated.priorities.tolist() == pytest.approx(expected, rel=1e-4)


def test_evaluation_environments_never_enter_the_replay(tmp_path: Path) -> None:
    kwargs = {**COUNTING["env"]["kwargs"], "content": "constant"}
    config = replay_config(replay=UNLIMITED, eval={"every": 10, "episodes": 50, "envs": ENVS})
    constant = replay_config(env={**COUNTING["env"], "kwargs": kwargs})
    said: list[float] = []
    with stepped(config, tmp_path, evaluation=constant) as run:
        while len(run.replay) < 60:
            run.act()
            run.pipeline.prefetch.step()
            said += [v for name, v in run.learner.measure().items() if name == "eval/return"]
        observations = run.everything().fields["observation"]
    assert said, "they were played"
    begins = {tuple(divmod(int(o), 1000)) for o in observations[:, 0, 0]}
    assert {begin for _, begin in begins} >= {0, 4, 8}, "no place is anybody else's"
    assert (np.diff(observations[:, :, 0], axis=1) == 1).all(), "a constant observation would not count on"


def test_samples_per_insert_stay_in_their_band(tmp_path: Path) -> None:
    config = replay_config(replay={"samples_per_insert": 3.0, "tolerance": 10.0})
    with stepped(config, tmp_path) as run:
        balances, trained = [], 0
        while run.learner.progress.updates < 150:
            run.act()
            while run.pipeline.prefetch.step() or run.pipeline.training.step():
                pass
            balances.append(run.replay.status().balance)
        metrics = run.learner.measure()
        trained = run.learner.progress.updates
    assert max(balances) <= 10.0
    assert min(balances) >= -10.0
    assert metrics["replay/sampled"] == 4 * (trained + len(run.pipeline.filled))
    inserted = metrics["replay/inserted"] - config.replay.min_size
    assert metrics["replay/sampled"] == pytest.approx(3.0 * inserted, abs=10.0)
    assert metrics["replay/samples_per_insert"] > 2.0


def test_where_training_stands_still_the_environments_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    config = replay_config()
    with stepped(config, tmp_path) as run:
        steps = -1
        while steps < (steps := run.learner.progress.agent_steps):
            for _ in range(50):
                run.act()
                run.pipeline.prefetch.step()  # the batches are full, and nobody empties them
        assert run.pipeline.prefetch._inserting.held_up
        assert run.learner.serving.measure({})["slots/free"] < ENVS
        while run.learner.progress.updates < 60:
            run.act()
            while run.pipeline.prefetch.step() or run.pipeline.training.step():
                pass
        begins = {tuple(divmod(int(o), 1000)) for o in run.everything().fields["observation"][:, 0, 0]}
        waited = run.learner.measure()["replay/wait_insert_seconds"]
    assert waited > 0
    for env in range(ENVS):
        mine = sorted(begin for e, begin in begins if e == env)
        assert mine == list(range(mine[0], mine[-1] + 1, 4)), "no sequence is missing"


@pytest.mark.parametrize("make", [Learner, SplitLearner])
def test_both_halves_of_a_learner_may_be_processes(
    make: type[Learner | SplitLearner], tmp_path: Path
) -> None:
    """Chunks written through one mapping of the memory are inserted and trained through another."""
    config = replay_config()
    with learner_with_actor(config, "slab", tmp_path, make) as learner:
        pipeline = learner.trainer.pipeline
        assert isinstance(pipeline, ReplayPipeline)
        while learner.progress.updates < 20:
            learner.inference.step(5.0)
            while pipeline.prefetch.step() or pipeline.training.step():
                pass
        batch = everything(pipeline.replay)
    observations = batch.fields["observation"][:, :, 0]
    assert (np.diff(observations, axis=1) == 1).all()
    assert {int(o) // 1000 for o in observations[:, 0]} == set(range(ENVS))
    assert learner.progress.trained_steps > 0


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved is the moment at which it was begun; a failure is told, and the next one is tried."""
    config, said = replay_config(checkpoint={"every_seconds": 1e-9}), []
    may_write, begun = threading.Event(), threading.Event()
    save = CheckpointStore.save

    def slow(store: CheckpointStore, *content: Any) -> int:
        begun.set()
        assert may_write.wait(60.0)
        return save(store, *content)

    with stepped(config, tmp_path, report=said.append) as run:

        def train(updates: int) -> None:
            while run.learner.progress.updates < updates:
                run.act()
                while run.pipeline.prefetch.step() or run.pipeline.training.step():
                    pass

        train(10)
        at_begin, weights = run.learner.progress.updates, run.learner.algorithm.learning.parameters.parameter
        before = weights.detach().clone()
        monkeypatch.setattr(CheckpointStore, "save", slow)
        run.learner.save_if_due()
        assert begun.wait(60.0)
        train(at_begin + 10)
        run.learner.save_if_due()  # nothing is due while one is written
        may_write.set()
        monkeypatch.setattr(CheckpointStore, "save", save)
        run.learner.trainer._saving.result(60.0)
        saved = CheckpointStore(tmp_path / "checkpoints").load()
        assert saved.state["progress"]["updates"] == at_begin
        names = [name for name, _ in run.learner.algorithm.learning.network.named_parameters()]
        flat = torch.cat([saved.tensors[f"weights/{name}"].flatten() for name in names])
        assert torch.equal(flat, before)
        assert not torch.equal(flat, weights)
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointStore, "save", raising)
            run.learner.save_if_due()
            assert wait_for(lambda: not run.learner.trainer._saving.busy)
            run.learner.save_if_due()
            assert any("goes on without a new checkpoint: the disk is full" in text for text in said)
            assert wait_for(lambda: not run.learner.trainer._saving.busy)
        assert run.learner.save() > saved.generation


def raising(store: CheckpointStore, *content: Any) -> int:
    raise CheckpointError("the disk is full")


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()
